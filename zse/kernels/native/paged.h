/* Keys and values of a sequence, read from the blocks of its table as float32 rows. */
#ifndef ZSE_PAGED_H
#define ZSE_PAGED_H

#include "vector.h"
#include "zse.h"

/* One head's keys, or its values, of one sequence. */
struct paged_head {
    const struct zse_cache *cache;
    const int32_t *blocks;
    int64_t num_slots; /* keys and values of a token */
    int64_t slot;      /* which of them this is */
    int32_t head_dim;
};

ALWAYS_INLINE vfloat load_cached(const char *row, int64_t column, int32_t dtype) {
    switch (dtype) {
        case ZSE_CACHE_FP32:
            return vload((const float *)row + column);
        case ZSE_CACHE_FP16:
            return vload_half((const uint16_t *)row + column);
        case ZSE_CACHE_BF16:
            return vload_bfloat((const uint16_t *)row + column);
        default:
            return vload_int8((const int8_t *)row + column);
    }
}

/* Copy `count` tokens of one block, rows `stride` apart; columns beyond head_dim become zero. */
ALWAYS_INLINE void read_run(const struct paged_head *head, const char *block, int64_t offset,
                            int64_t count, int32_t dtype, float *output, int64_t stride) {
    static const int64_t number_bytes[] = {4, 2, 2, 1};
    int64_t row_bytes = head->head_dim * number_bytes[dtype];
    int64_t whole = head->head_dim / VECTOR_LANES * VECTOR_LANES;
    const float *scales = (const float *)(block + head->cache->block_size * head->num_slots *
                                                      head->head_dim);
    for (int64_t token = 0; token < count; token++, output += stride) {
        int64_t index = (offset + token) * head->num_slots + head->slot;
        const char *row = block + index * row_bytes;
        vfloat scale = vbroadcast(dtype == ZSE_CACHE_INT8 ? scales[index] : 1.0f);
        for (int64_t column = 0; column < whole; column += VECTOR_LANES) {
            vfloat values = load_cached(row, column, dtype);
            vstore(output + column, dtype == ZSE_CACHE_INT8 ? values * scale : values);
        }
        if (whole < stride) {
            char tail[4 * VECTOR_LANES] = {0};
            memcpy(tail, row + whole * number_bytes[dtype],
                   (size_t)((head->head_dim - whole) * number_bytes[dtype]));
            vstore(output + whole, load_cached(tail, 0, dtype) * scale);
            for (int64_t column = whole + VECTOR_LANES; column < stride; column += VECTOR_LANES)
                vstore(output + column, (vfloat){0});
        }
    }
}

/* Read positions first .. first + count into rows `stride` (whole vectors) apart. */
static inline void read_positions(const struct paged_head *head, int64_t first, int64_t count,
                                  float *output, int64_t stride) {
    const struct zse_cache *cache = head->cache;
    while (count > 0) {
        int64_t offset = first % cache->block_size;
        int64_t run = cache->block_size - offset < count ? cache->block_size - offset : count;
        const char *block = cache->data + head->blocks[first / cache->block_size] *
                                              cache->block_bytes;
        switch (cache->dtype) { /* a loop of its own for each */
            case ZSE_CACHE_FP32:
                read_run(head, block, offset, run, ZSE_CACHE_FP32, output, stride);
                break;
            case ZSE_CACHE_FP16:
                read_run(head, block, offset, run, ZSE_CACHE_FP16, output, stride);
                break;
            case ZSE_CACHE_BF16:
                read_run(head, block, offset, run, ZSE_CACHE_BF16, output, stride);
                break;
            default:
                read_run(head, block, offset, run, ZSE_CACHE_INT8, output, stride);
        }
        first += run, count -= run, output += run * stride;
    }
}

#endif
