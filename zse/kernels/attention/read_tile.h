/* A tile of keys and values, read from the cache as float32, and what queries make of it. */
#ifndef ZSE_ATTENTION_READ_TILE_H
#define ZSE_ATTENTION_READ_TILE_H

#include "group.h"
#include "softmax.h"

_Static_assert((2 * TILE_KEYS * ZSE_MAX_HEAD_DIM +
                ZSE_MAX_HEADS_A_GROUP * (2 * ZSE_MAX_HEAD_DIM + TILE_KEYS + 2)) * 4 <=
                   ZSE_SCRATCH_BYTES,
               "attention needs more scratch");

/* Keys and values of a tile as float32, zeros behind each head. */
struct read_tile {
    float *keys;   /* in panels, columns and rows exchanged, or for a single query as they are */
    float *values; /* [TILE_KEYS, value_stride] */
};

/* Read a tile for heads that lie side by side, a few tokens of all of them at a time: in the order
 * in which memory has them. */
static inline void read_keys_and_values(const struct group *groups, const struct read_tile *tiles,
                                        int64_t num_groups, int turns, int64_t first_key,
                                        int64_t num_keys) {
    const char *rows[2 * PIECE_HEADS][TILE_KEYS];
    const uint16_t *scales[2 * PIECE_HEADS][TILE_KEYS];
    struct paged_rows keys[PIECE_HEADS], values[PIECE_HEADS];
    for (int64_t i = 0; i < num_groups; i++) {
        const struct group *group = groups + i;
        keys[i] = find_rows(&group->keys, first_key, num_keys, rows[2 * i], scales[2 * i]);
        values[i] = find_rows(&group->values, first_key, num_keys, rows[2 * i + 1],
                              scales[2 * i + 1]);
    }
    int64_t stride = groups->stride;
    for (int64_t key = 0; key < num_keys; key += VECTOR_LANES) {
        int64_t end = least_of(key + VECTOR_LANES, num_keys);
        int64_t place = key / PANEL_COLUMNS * PANEL_COLUMNS * stride + key % PANEL_COLUMNS;
        for (int64_t i = 0; i < num_groups; i++)
            if (turns)
                turn_rows(keys + i, key, num_keys - key, tiles[i].keys + place, PANEL_COLUMNS);
            else
                copy_rows(keys + i, key, end, tiles[i].keys, stride);
        for (int64_t i = 0; i < num_groups; i++)
            copy_rows(values + i, key, end, tiles[i].values, groups->value_stride);
    }
}

/* scores[query][key] = query . key, of turned keys. */
static inline void score_queries(const struct group *group, const float *queries,
                                 int64_t num_queries, const struct read_tile *tile,
                                 int64_t num_keys, float *scores) {
    struct product product = {
        .left = queries,
        .right = tile->keys,
        .sums = scores,
        .left_stride = group->stride,
        .right_stride = PANEL_COLUMNS,
        .right_panel = group->stride * PANEL_COLUMNS,
        .sums_stride = TILE_KEYS,
        .depth = group->attention->head_dim,
        .adds = 0,
    };
    multiply(&product, num_queries, (num_keys + PANEL_COLUMNS - 1) / PANEL_COLUMNS);
}

/* scores[key] = query . key of a single query, for which nothing is worth turning. */
static inline void score_query(const struct group *group, const float *query,
                               const struct read_tile *tile, int64_t num_keys, float *scores) {
    const float *keys = tile->keys;
    for (int64_t key = 0; key < num_keys; key++, keys += group->stride) {
        vfloat sums[2] = {{0}, {0}};
        for (int64_t column = 0; column < group->stride; column += PANEL_COLUMNS)
            for (int half = 0; half < 2; half++) {
                int64_t place = column + half * VECTOR_LANES;
                sums[half] += vload(query + place) * vload(keys + place);
            }
        scores[key] = vsum(sums[0] + sums[1]);
    }
}

/* Add values, weighed by what the scores have become. */
static inline void add_values(const struct group *group, int64_t num_queries,
                              const struct read_tile *tile, int64_t num_keys, const float *weights,
                              const struct gathered *gathered) {
    struct product product = {
        .left = weights,
        .right = tile->values,
        .sums = gathered->values,
        .left_stride = TILE_KEYS,
        .right_stride = group->value_stride,
        .right_panel = PANEL_COLUMNS,
        .sums_stride = group->value_stride,
        .depth = num_keys,
        .adds = 1,
    };
    multiply(&product, num_queries, group->value_stride / PANEL_COLUMNS);
}

#endif
