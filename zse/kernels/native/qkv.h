/* Where a row of QKV has what, and how wide it is and what is kept of it. */
#ifndef ZSE_QKV_H
#define ZSE_QKV_H

#include "zse.h"

/* Columns of the queries, of their gates and, without a latent, of what attention returns. */
static inline int64_t query_columns(const struct zse_attention *attention) {
    return (int64_t)attention->num_heads * attention->head_dim;
}

static inline int64_t first_key_column(const struct zse_attention *attention) {
    return query_columns(attention) * (attention->is_gated ? 2 : 1);
}

/* Columns of a head of what attention returns. */
static inline int32_t value_columns(const struct zse_attention *attention) {
    return attention->latent ? attention->latent->rank : attention->head_dim;
}

/* Rows of head_dim numbers that are kept of a token. */
static inline int32_t kept_rows(const struct zse_attention *attention) {
    return attention->latent ? attention->num_kv_heads : 2 * attention->num_kv_heads;
}

/* Rows of the matrix that makes them. */
static inline int64_t qkv_width(const struct zse_attention *attention) {
    if (attention->latent) return attention->latent->query_columns + attention->head_dim;
    int64_t keys = (int64_t)attention->num_kv_heads * attention->head_dim;
    int64_t kinds = attention->shares_keys ? 0 : attention->values_are_keys ? 1 : 2;
    return first_key_column(attention) + kinds * keys;
}

#endif
