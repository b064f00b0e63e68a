/* One head on its way into the cache: its rotation, and how its numbers are kept. */
#ifndef ZSE_KEPT_H
#define ZSE_KEPT_H

#include "paged.h"
#include "vector.h"
#include "zse.h"

/* --- rotation --------------------------------------------------------------------------------- */

/* Column i of the first rotary_dim turns with column i + rotary_dim / 2. */
static inline void rotate_head(float *head, const float *rotary, int32_t rotary_dim) {
    int32_t half = rotary_dim / 2;
    for (int32_t i = 0; i < half; i += VECTOR_LANES) {
        int64_t left = half - i;
        vfloat cosines = vload_some(rotary + i, left), sines = vload_some(rotary + half + i, left);
        vfloat first = vload_some(head + i, left), second = vload_some(head + half + i, left);
        vstore_some(head + i, first * cosines - second * sines, left);
        vstore_some(head + half + i, second * cosines + first * sines, left);
    }
}

/* --- the cache -------------------------------------------------------------------------------- */

static inline uint16_t bfloat_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16) | 0x40; /* no number */
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);             /* ties to even */
}

static inline uint16_t half_of(float value) {
    _Float16 half = (_Float16)value;
    uint16_t bits;
    memcpy(&bits, &half, sizeof bits);
    return bits;
}

/* Write codes and return their scale: the largest value has code 127, halves go to even. The scale
 * is rounded before, so that the codes fit it. */
static inline uint16_t quantize_group(const float *values, int32_t count, int8_t *codes) {
    const float to_whole = 0x1.8p23f, largest_half = 65504.0f;
    float largest = 0.0f;
    for (int32_t i = 0; i < count; i++) {
        float size = __builtin_fabsf(values[i]);
        largest = size > largest ? size : largest;
    }
    float exact = largest / 127.0f;
    uint16_t bits = half_of(exact < largest_half ? exact : largest_half);
    float scale = half_value(bits), inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    for (int32_t i = 0; i < count; i++) {
        float code = (values[i] * inverse + to_whole) - to_whole;
        codes[i] = (int8_t)(code > 127.0f ? 127.0f : code < -127.0f ? -127.0f : code);
    }
    return bits;
}

static inline void quantize_head(const float *head, int32_t head_dim, int8_t *codes,
                                 uint16_t *scales) {
    for (int32_t first = 0; first < head_dim; first += SCALE_COLUMNS) {
        int32_t left = head_dim - first;
        scales[first / SCALE_COLUMNS] = quantize_group(
            head + first, left < SCALE_COLUMNS ? left : SCALE_COLUMNS, codes + first);
    }
}

/* --- four bits --------------------------------------------------------------------------------- */

/* Columns that are turned together. */
#define TURNED_COLUMNS 32

/* Turn each run of columns by Hadamard's signs, scaled to keep lengths: products of what is turned
 * alike stay what they were, and what one column has is spread over all of its run. */
static inline void turn_head(float *head, int32_t head_dim) {
    const float kept_length = 0.17677669529663687f; /* 1 / sqrt(32) */
    for (float *run = head; run < head + head_dim; run += TURNED_COLUMNS) {
        for (int apart = 1; apart < TURNED_COLUMNS; apart *= 2)
            for (int i = 0; i < TURNED_COLUMNS; i++) {
                if (i & apart) continue;
                float first = run[i], second = run[i + apart];
                run[i] = first + second;
                run[i + apart] = first - second;
            }
        for (int i = 0; i < TURNED_COLUMNS; i++) run[i] *= kept_length;
    }
}

/* Write codes 0 to 15 and return their scale, the upper byte of an fp16: what is largest has code 0,
 * eight steps below the middle, so that of sixteen codes none is lost to symmetry. */
static inline uint8_t quantize_narrow(const float *values, uint8_t *codes) {
    const float to_whole = 0x1.8p23f, largest_scale = 57344.0f;
    float highest = values[0], lowest = values[0];
    for (int i = 1; i < NARROW_SCALE_COLUMNS; i++) {
        highest = values[i] > highest ? values[i] : highest;
        lowest = values[i] < lowest ? values[i] : lowest;
    }
    float exact = (highest >= -lowest ? highest : lowest) * -0.125f;
    exact = exact > largest_scale ? largest_scale : exact < -largest_scale ? -largest_scale : exact;
    uint8_t byte = (uint8_t)((half_of(exact) + 0x80) >> 8);
    float scale = half_value((uint16_t)(byte << 8)), inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
    for (int i = 0; i < NARROW_SCALE_COLUMNS; i++) {
        float code = (values[i] * inverse + to_whole) - to_whole;
        codes[i] = (uint8_t)(8.0f + (code > 7.0f ? 7.0f : code < -8.0f ? -8.0f : code));
    }
    return byte;
}

/* Keep a row as it is read by load_narrow. */
static inline void quantize_narrow_head(const float *head, int32_t head_dim, uint8_t *packed,
                                        uint8_t *scales) {
    uint8_t codes[ZSE_MAX_HEAD_DIM];
    for (int32_t first = 0; first < head_dim; first += NARROW_SCALE_COLUMNS)
        scales[first / NARROW_SCALE_COLUMNS] = quantize_narrow(head + first, codes + first);
    for (int32_t i = 0; i < head_dim / 2; i++)
        packed[i] = (uint8_t)(codes[i] | codes[i + head_dim / 2] << 4);
}

/* Where a row of the step is kept: its block, and its place among the block's tokens. */
struct place {
    char *block;
    int64_t offset;
    int64_t num_slots; /* rows of a token, of keys and of values */
};

static inline void store_head(const struct zse_cache *cache, const struct place *place,
                              int64_t slot, const float *head, int32_t head_dim) {
    int64_t index = place->offset * place->num_slots + slot, first = index * head_dim;
    switch (cache->dtype) {
        case ZSE_CACHE_FP32:
            memcpy((float *)place->block + first, head, (size_t)head_dim * sizeof(float));
            break;
        case ZSE_CACHE_FP16:
            for (int32_t i = 0; i < head_dim; i++)
                ((uint16_t *)place->block)[first + i] = half_of(head[i]);
            break;
        case ZSE_CACHE_BF16:
            for (int32_t i = 0; i < head_dim; i++)
                ((uint16_t *)place->block)[first + i] = bfloat_of(head[i]);
            break;
        case ZSE_CACHE_INT4: {
            int64_t codes_bytes = cache->block_size * place->num_slots * head_dim / 2;
            quantize_narrow_head(head, head_dim, (uint8_t *)place->block + first / 2,
                                 (uint8_t *)place->block + codes_bytes +
                                     index * (head_dim / NARROW_SCALE_COLUMNS));
            break;
        }
        default: {
            int64_t codes_bytes = cache->block_size * place->num_slots * head_dim;
            uint16_t *scales = (uint16_t *)(place->block + codes_bytes);
            quantize_head(head, head_dim, (int8_t *)place->block + first,
                          scales + index * scales_of_row(head_dim));
        }
    }
}

#endif
