/* Where a row of QKV has what: queries, then their gates, then keys, then values. */
#ifndef ZSE_QKV_H
#define ZSE_QKV_H

#include "zse.h"

/* Columns of the queries, of their gates, and of what attention returns. */
static inline int64_t query_columns(const struct zse_attention *attention) {
    return (int64_t)attention->num_heads * attention->head_dim;
}

static inline int64_t first_key_column(const struct zse_attention *attention) {
    return query_columns(attention) * (attention->is_gated ? 2 : 1);
}

/* Rows of the matrix that makes them. */
static inline int64_t qkv_width(const struct zse_attention *attention) {
    int64_t keys = (int64_t)attention->num_kv_heads * attention->head_dim;
    int64_t kinds = attention->shares_keys ? 0 : attention->values_are_keys ? 1 : 2;
    return first_key_column(attention) + kinds * keys;
}

#endif
