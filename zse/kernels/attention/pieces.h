/* How attention falls into pieces. Both sides of the split look at a row's own sequence alone, so
 * that the bits of a row depend neither on other rows nor on threads. */
#ifndef ZSE_ATTENTION_PIECES_H
#define ZSE_ATTENTION_PIECES_H

#include "../native/zse.h"

/* A part of one row's keys is at least so long: shorter ones cost more to join than they gain. */
#define PART_KEYS 256
/* Queries, of all heads of a group, that a piece of a prompt has at most. */
#define PIECE_QUERIES 96

/* How the keys of a chunk of one row fall into parts, and which heads a piece has of it. */
struct row_split {
    int64_t first_key;
    int64_t end_key;
    int64_t part_keys;
    int64_t num_parts;
    int64_t heads_a_piece; /* of keys and values; 1 where there are several parts */
};

static inline int64_t first_key_of(const struct zse_attention *attention, int64_t position) {
    if (attention->window == 0 || position < attention->window) return 0;
    return position + 1 - attention->window;
}

static inline struct row_split split_row(const struct zse_attention *attention,
                                         int64_t position) {
    struct row_split split = {first_key_of(attention, position), position + 1, 0, 0, 1};
    int64_t keys = split.end_key - split.first_key;
    int64_t part = (keys + ZSE_ATTENTION_PARTS - 1) / ZSE_ATTENTION_PARTS;
    split.part_keys = (part + PART_KEYS - 1) / PART_KEYS * PART_KEYS;
    split.num_parts = (keys + split.part_keys - 1) / split.part_keys;
    if (split.num_parts == 1) {
        int64_t heads = PART_KEYS / keys;
        split.heads_a_piece = heads < attention->num_kv_heads ? heads : attention->num_kv_heads;
    }
    return split;
}

/* Tokens of a prompt that one piece has, with all queries of a group of heads: as many as make whole
 * blocks of six rows, which products are fastest with. */
static inline int64_t tokens_a_piece(const struct zse_attention *attention) {
    int64_t repeats = attention->num_heads / attention->num_kv_heads;
    int64_t most = PIECE_QUERIES / repeats;
    for (int64_t tokens = most; tokens > most / 2; tokens--)
        if (tokens * repeats % 6 == 0) return tokens;
    return most > 0 ? most : 1;
}

static inline int64_t count_chunk_pieces(const struct zse_attention *attention,
                                         const struct zse_rows *chunk) {
    if (chunk->num_rows > 1) {
        int64_t tokens = tokens_a_piece(attention);
        return (chunk->num_rows + tokens - 1) / tokens * attention->num_kv_heads;
    }
    struct row_split split = split_row(attention, chunk->start_position);
    int64_t heads = split.heads_a_piece;
    return (attention->num_kv_heads + heads - 1) / heads * split.num_parts;
}

#endif
