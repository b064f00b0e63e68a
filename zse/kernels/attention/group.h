/* A group of heads that share keys and values, of one chunk: where its numbers are. */
#ifndef ZSE_ATTENTION_GROUP_H
#define ZSE_ATTENTION_GROUP_H

#include "../native/paged.h"
#include "../native/qkv.h"
#include "pieces.h"
#include "tile.h"

/* A group of heads, which share keys and values, and where its numbers are. */
struct group {
    const struct zse_attention *attention;
    const struct zse_rows *chunk;
    struct paged_head keys;
    struct paged_head values;
    const float *queries;    /* of the chunk's first row and the group's first head */
    float *mixed;
    int64_t queries_stride;  /* from row to row */
    int64_t mixed_stride;
    int64_t first_head;
    int64_t repeats;         /* heads of the group */
    int64_t stride;          /* head_dim in whole panels */
    int64_t value_dim;
    int64_t value_stride;
};

static inline int64_t whole_panels(int64_t columns) {
    return (columns + PANEL_COLUMNS - 1) / PANEL_COLUMNS * PANEL_COLUMNS;
}

/* The keys of a head in the cache. */
static inline struct paged_head cached_keys(const struct zse_operation *operation,
                                            const struct zse_step *step,
                                            const struct zse_rows *chunk, int64_t kv_head) {
    const struct zse_attention *attention = operation->attention;
    const struct zse_cache *cache = step->caches + operation->layer;
    const int32_t *blocks = chunk[cache->group * step->num_chunks].blocks;
    int32_t head_dim = attention->head_dim;
    return (struct paged_head){*cache, blocks, kept_rows(attention), kv_head, head_dim, head_dim};
}

/* The keys of a head where QKV has those of a whole text: as in a cache of one block, whose tokens
 * have queries, too. */
static inline struct paged_head own_keys(const struct zse_attention *attention,
                                         const float *rows, const struct zse_rows *chunk,
                                         int64_t kv_head) {
    static const int32_t only_block = 0;
    int64_t width = qkv_width(attention);
    int32_t head_dim = attention->head_dim;
    struct zse_cache block = {
        .data = (char *)(rows + chunk->first_row * width),
        .block_size = chunk->num_rows,
        .dtype = ZSE_CACHE_FP32,
    };
    int64_t first_key = first_key_column(attention) / head_dim;
    return (struct paged_head){block, &only_block, width / head_dim, first_key + kv_head, head_dim,
                               head_dim};
}

static inline struct group group_of(const struct zse_operation *operation,
                                    const struct zse_step *step, const struct zse_rows *chunk,
                                    int64_t kv_head) {
    const struct zse_attention *attention = operation->attention;
    const float *rows = step->registers[operation->input];
    int32_t head_dim = attention->head_dim, value_dim = value_columns(attention);
    int64_t repeats = attention->num_heads / attention->num_kv_heads;
    struct paged_head keys = attention->sees_all ? own_keys(attention, rows, chunk, kv_head)
                                                 : cached_keys(operation, step, chunk, kv_head);
    struct paged_head values = keys;
    values.slot += kept_rows(attention) - attention->num_kv_heads; /* the keys' own, of a latent */
    values.head_dim = value_dim;
    struct group group = {
        .attention = attention,
        .chunk = chunk,
        .keys = keys,
        .values = values,
        .queries_stride = attention->latent ? query_columns(attention) : qkv_width(attention),
        .mixed_stride = (int64_t)attention->num_heads * value_dim,
        .first_head = kv_head * repeats,
        .repeats = repeats,
        .stride = whole_panels(head_dim),
        .value_dim = value_dim,
        .value_stride = whole_panels(value_dim),
    };
    group.queries = rows + chunk->first_row * group.queries_stride + group.first_head * head_dim;
    group.mixed = step->registers[operation->output] + chunk->first_row * group.mixed_stride +
                  group.first_head * value_dim;
    return group;
}

/* Behind the last key that a row of the chunk sees; a window reaches as far to both sides. */
static inline int64_t end_key_of(const struct group *group, int64_t position) {
    int64_t end = group->chunk->start_position + group->chunk->num_rows;
    if (!group->attention->sees_all) return position + 1;
    return group->attention->window ? least_of(end, position + group->attention->window) : end;
}

/* Copy one row's query of one head, scaled, zeros behind it. */
static inline void copy_query(const struct group *group, int64_t row, int64_t head, float *output) {
    int32_t head_dim = group->attention->head_dim;
    const float *query = group->queries + row * group->queries_stride + head * head_dim;
    for (int64_t column = 0; column < group->stride; column += VECTOR_LANES) {
        int64_t left = column < head_dim ? head_dim - column : 0;
        vstore(output + column, vload_some(query + column, left) * group->attention->scale);
    }
}

static inline const float *sink_of(const struct group *group, int64_t head) {
    const float *sinks = group->attention->sinks;
    return sinks == NULL ? NULL : sinks + group->first_head + head;
}

#endif
