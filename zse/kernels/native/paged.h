/* Keys and values of a sequence, where the blocks of its table have them. */
#ifndef ZSE_PAGED_H
#define ZSE_PAGED_H

#include "vector.h"
#include "zse.h"

/* One head's keys, or its values, of one sequence. */
struct paged_head {
    struct zse_cache cache;
    const int32_t *blocks;
    int64_t num_slots; /* rows of a token, of keys and of values */
    int64_t slot;      /* which of them this is */
    int32_t row_dim;   /* numbers of a row */
    int32_t head_dim;  /* the first of them, which are read */
};

/* Where the rows of consecutive positions lie, and what their codes are multiplied by. */
struct paged_rows {
    const char *const *rows;
    const uint16_t *const *scales; /* of INT8: fp16, one for so many columns of a row; of INT4: a
                                      byte for half as many, the upper half of an fp16 */
    int32_t head_dim;
    int32_t dtype;
};

/* Columns of a row that share a scale. */
#define SCALE_COLUMNS 32

ALWAYS_INLINE int64_t scales_of_row(int64_t columns) {
    return (columns + SCALE_COLUMNS - 1) / SCALE_COLUMNS;
}

/* Columns of a row in INT4 that share a scale. */
#define NARROW_SCALE_COLUMNS 16

ALWAYS_INLINE int has_scales(int32_t dtype) {
    return dtype == ZSE_CACHE_INT8 || dtype == ZSE_CACHE_INT4;
}

ALWAYS_INLINE int64_t bytes_of_row(int64_t columns, int32_t dtype) {
    switch (dtype) {
        case ZSE_CACHE_FP32:
            return columns * 4;
        case ZSE_CACHE_INT8:
            return columns;
        case ZSE_CACHE_INT4:
            return columns / 2;
        default:
            return columns * 2;
    }
}

/* A scale of INT4. */
ALWAYS_INLINE float narrow_scale(const uint16_t *scales, int64_t column) {
    const uint8_t *bytes = (const uint8_t *)scales;
    return half_value((uint16_t)(bytes[column / NARROW_SCALE_COLUMNS] << 8));
}

/* Find the rows of positions first .. first + count. */
static inline struct paged_rows find_rows(const struct paged_head *head, int64_t first,
                                          int64_t count, const char **rows,
                                          const uint16_t **scales) {
    const struct zse_cache *cache = &head->cache;
    int64_t block_size = cache->block_size, num_slots = head->num_slots;
    int64_t row_bytes = bytes_of_row(head->row_dim, cache->dtype);
    int64_t row_scales = scales_of_row(head->row_dim);
    int64_t place = first / block_size, offset = first % block_size;
    const char *block = cache->data + head->blocks[place] * cache->block_bytes;
    for (int64_t i = 0; i < count; i++, offset++) {
        if (offset == block_size) {
            offset = 0;
            block = cache->data + head->blocks[++place] * cache->block_bytes;
        }
        int64_t index = offset * num_slots + head->slot;
        rows[i] = block + index * row_bytes;
        if (has_scales(cache->dtype))
            scales[i] = (const uint16_t *)(block + block_size * num_slots * row_bytes) +
                        index * row_scales;
    }
    return (struct paged_rows){rows, scales, head->head_dim, cache->dtype};
}

ALWAYS_INLINE vfloat widen(const char *numbers, int32_t dtype) {
    switch (dtype) {
        case ZSE_CACHE_FP32:
            return vload((const float *)numbers);
        case ZSE_CACHE_FP16:
            return vload_half((const uint16_t *)numbers);
        case ZSE_CACHE_BF16:
            return vload_bfloat((const uint16_t *)numbers);
        default:
            return vload_int8((const int8_t *)numbers);
    }
}

/* Codes of INT4: byte i of a row has column i, and above it column i + head_dim / 2. Halves are
 * whole vectors. */
ALWAYS_INLINE vfloat load_narrow(const char *row, int64_t column, int64_t head_dim) {
    int64_t half = head_dim / 2;
    vubyte packed;
    memcpy(&packed, row + (column < half ? column : column - half), sizeof packed);
    vubyte codes = column < half ? packed & 15 : packed >> 4;
    return __builtin_convertvector(__builtin_convertvector(codes, vint), vfloat) - 8.0f;
}

/* A vector of a row as float32, not yet scaled; zeros beyond the head. `dtype` is a constant. */
ALWAYS_INLINE vfloat load_cached(const struct paged_rows *from, int64_t row, int64_t column,
                                 int32_t dtype) {
    int64_t left = from->head_dim - column;
    if (dtype == ZSE_CACHE_INT4)
        return left > 0 ? load_narrow(from->rows[row], column, from->head_dim) : (vfloat){0};
    const char *numbers = from->rows[row] + bytes_of_row(column, dtype);
    if (left >= VECTOR_LANES) return widen(numbers, dtype);
    char tail[4 * VECTOR_LANES] = {0};
    if (left > 0) memcpy(tail, numbers, (size_t)bytes_of_row(left, dtype));
    return widen(tail, dtype);
}

/* A loop of its own for each kind of numbers: `call` has `dtype` as a constant. */
#define FOR_EACH_DTYPE(kind, call)                                                           \
    switch (kind) {                                                                          \
        case ZSE_CACHE_FP32: { const int32_t dtype = ZSE_CACHE_FP32; call; } break;          \
        case ZSE_CACHE_FP16: { const int32_t dtype = ZSE_CACHE_FP16; call; } break;          \
        case ZSE_CACHE_BF16: { const int32_t dtype = ZSE_CACHE_BF16; call; } break;          \
        case ZSE_CACHE_INT4: { const int32_t dtype = ZSE_CACHE_INT4; call; } break;          \
        default: { const int32_t dtype = ZSE_CACHE_INT8; call; }                             \
    }

ALWAYS_INLINE void copy_rows_of(const struct paged_rows *from, int64_t first, int64_t end,
                                int32_t dtype, float *output, int64_t stride) {
    for (int64_t row = first; row < end; row++) {
        float scale = 0.0f;
        for (int64_t column = 0; column < stride; column += VECTOR_LANES) {
            vfloat values = load_cached(from, row, column, dtype);
            if (dtype == ZSE_CACHE_INT8) {
                if (column % SCALE_COLUMNS == 0)
                    scale = half_value(from->scales[row][column / SCALE_COLUMNS]);
                values *= scale;
            }
            if (dtype == ZSE_CACHE_INT4 && column < from->head_dim)
                values *= narrow_scale(from->scales[row], column);
            vstore(output + row * stride + column, values);
        }
    }
}

/* Copy rows first .. end as float32, each to its place in rows `stride` (whole vectors) apart,
 * zeros behind it. */
static inline void copy_rows(const struct paged_rows *from, int64_t first, int64_t end,
                             float *output, int64_t stride) {
    FOR_EACH_DTYPE(from->dtype, copy_rows_of(from, first, end, dtype, output, stride))
}

/* The row that is turned into a lane: the last of `count` stands for those that are missing. */
ALWAYS_INLINE int64_t turned_row(int64_t first, int64_t count, int64_t lane) {
    return first + (lane < count ? lane : count - 1);
}

ALWAYS_INLINE vfloat scales_of_rows(const struct paged_rows *from, int64_t first, int64_t count,
                                    int64_t group) {
    uint16_t scales[VECTOR_LANES];
    for (int lane = 0; lane < VECTOR_LANES; lane++)
        scales[lane] = from->scales[turned_row(first, count, lane)][group];
    return vload_half(scales);
}

ALWAYS_INLINE vfloat narrow_scales_of_rows(const struct paged_rows *from, int64_t first,
                                           int64_t count, int64_t column) {
    uint16_t scales[VECTOR_LANES];
    for (int lane = 0; lane < VECTOR_LANES; lane++) {
        const uint8_t *bytes = (const uint8_t *)from->scales[turned_row(first, count, lane)];
        scales[lane] = (uint16_t)(bytes[column / NARROW_SCALE_COLUMNS] << 8);
    }
    return vload_half(scales);
}

ALWAYS_INLINE void turn_rows_of(const struct paged_rows *from, int64_t first, int64_t count,
                                int32_t dtype, float *output, int64_t output_stride) {
    vfloat scales = {0};
    for (int64_t column = 0; column < from->head_dim; column += VECTOR_LANES) {
        vfloat square[VECTOR_LANES];
        for (int row = 0; row < VECTOR_LANES; row++)
            square[row] = load_cached(from, turned_row(first, count, row), column, dtype);
        vturn(square);
        if (dtype == ZSE_CACHE_INT8 && column % SCALE_COLUMNS == 0)
            scales = scales_of_rows(from, first, count, column / SCALE_COLUMNS);
        if (dtype == ZSE_CACHE_INT4 && column % NARROW_SCALE_COLUMNS == 0)
            scales = narrow_scales_of_rows(from, first, count, column);
        for (int row = 0; row < VECTOR_LANES; row++) {
            if (has_scales(dtype)) square[row] *= scales;
            vstore(output + (column + row) * output_stride, square[row]);
        }
    }
}

/* Copy a vector's width of rows with rows and columns exchanged; the last of `count` rows stands
 * for those that are missing. */
static inline void turn_rows(const struct paged_rows *from, int64_t first, int64_t count,
                             float *output, int64_t output_stride) {
    FOR_EACH_DTYPE(from->dtype,
                   turn_rows_of(from, first, count, dtype, output, output_stride))
}

#endif
