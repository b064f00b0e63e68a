/* How attention falls into pieces. Both sides of the split look at a row's own sequence alone, so
 * that the bits of a row depend neither on other rows nor on threads. */
#ifndef ZSE_ATTENTION_PIECES_H
#define ZSE_ATTENTION_PIECES_H

#include "../native/zse.h"

/* A part of one row's keys is at least so long: shorter ones cost more to join than they gain. */
#define PART_KEYS 128
/* Heads of keys and values that a piece of one row has at most, and their columns together: their
 * rows are neighbours in memory, and a processor foresees what is read in order. */
#define PIECE_HEADS 4
#define PIECE_COLUMNS 256
/* Queries, of all heads of a group, that a piece of a prompt has at most. */
#define PIECE_QUERIES 96

/* How the keys of a chunk of one row fall into parts, and which heads a piece has of it. */
struct row_split {
    int64_t first_key;
    int64_t end_key;
    int64_t part_keys;
    int64_t num_parts;
    int64_t heads_a_piece; /* of keys and values */
};

static inline int64_t first_key_of(const struct zse_attention *attention, int64_t position) {
    if (attention->window == 0 || position < attention->window) return 0;
    return position + 1 - attention->window;
}

static inline int64_t least_of(int64_t left, int64_t right) {
    return left < right ? left : right;
}

static inline struct row_split split_row(const struct zse_attention *attention,
                                         int64_t position) {
    struct row_split split = {first_key_of(attention, position), position + 1, 0, 0, 0};
    int64_t keys = split.end_key - split.first_key;
    int64_t part = (keys + ZSE_ATTENTION_PARTS - 1) / ZSE_ATTENTION_PARTS;
    split.part_keys = (part + PART_KEYS - 1) / PART_KEYS * PART_KEYS;
    split.num_parts = (keys + split.part_keys - 1) / split.part_keys;
    int64_t room = PIECE_COLUMNS / attention->head_dim, most = least_of(PIECE_HEADS, room);
    /* Without several parts threads share the heads, but where these have little to do. */
    if (split.num_parts == 1) most = least_of(most, PART_KEYS / keys);
    split.heads_a_piece = most < 1 ? 1 : least_of(most, attention->num_kv_heads);
    return split;
}

static inline int64_t head_pieces(const struct zse_attention *attention,
                                  const struct row_split *split) {
    return (attention->num_kv_heads + split->heads_a_piece - 1) / split->heads_a_piece;
}

/* Tokens of a prompt that one piece has, with all queries of a group of heads: as many as make
 * whole blocks of six rows, which products are fastest with. */
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
    return head_pieces(attention, &split) * split.num_parts;
}

#endif
