/* Passes over a row of logits: its largest number, and that of each block, which tells later passes
 * where to look. No number counts as minus infinity. */
#ifndef ZSE_ROW_SCAN_H
#define ZSE_ROW_SCAN_H

#include "../native/vector_math.h"

#define BLOCK_TOKENS 128

/* A row of logits and what a pass over it has found. */
struct scanned_row {
    const float *logits;
    int64_t count;
    float *block_largest; /* [num_blocks] */
    int64_t num_blocks;
    float largest;        /* -infinity where nothing may come */
    int32_t likeliest;    /* the first token that has it; 0 where nothing may come */
};

ALWAYS_INLINE float largest_of_block(const float *logits, int64_t count) {
    vfloat largest[2] = {vbroadcast(-__builtin_inff()), vbroadcast(-__builtin_inff())};
    int64_t i = 0;
    for (; i + 2 * VECTOR_LANES <= count; i += 2 * VECTOR_LANES)
        for (int half = 0; half < 2; half++)
            largest[half] = vlargest(vload(logits + i + half * VECTOR_LANES), largest[half]);
    float result = vmaximum(vlargest(largest[0], largest[1]));
    for (; i < count; i++) result = logits[i] > result ? logits[i] : result;
    return result;
}

static inline int64_t block_end(const struct scanned_row *row, int64_t block) {
    int64_t end = (block + 1) * BLOCK_TOKENS;
    return end < row->count ? end : row->count;
}

static inline struct scanned_row scan_row(const float *logits, int64_t count,
                                          float *block_largest) {
    struct scanned_row row = {logits, count, block_largest,
                              (count + BLOCK_TOKENS - 1) / BLOCK_TOKENS, -__builtin_inff(), 0};
    int64_t best = 0;
    for (int64_t block = 0; block < row.num_blocks; block++) {
        int64_t first = block * BLOCK_TOKENS;
        float largest = largest_of_block(logits + first, block_end(&row, block) - first);
        block_largest[block] = largest;
        if (largest > row.largest) row.largest = largest, best = block;
    }
    if (row.largest > -__builtin_inff())
        for (row.likeliest = (int32_t)(best * BLOCK_TOKENS); logits[row.likeliest] != row.largest;)
            row.likeliest++;
    return row;
}

#endif
