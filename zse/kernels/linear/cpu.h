/* What the files of the matrix product share. */
#ifndef ZSE_LINEAR_CPU_H
#define ZSE_LINEAR_CPU_H

#include "../native/simd.h"
#include "../native/zse.h"

/* Columns of a product that a tile has at most; many rows of activations are multiplied with it. */
#define ZSE_TILE_ROWS 64
/* Columns of a product that are computed side by side; a tile has one or more such strips. */
#define ZSE_STRIP_ROWS (SIMD_TILE_VECTORS * SIMD_TILE_WIDTH)

/* Steps of int8 in NF4's 1.0, and its values in them; `tables.py` says why these. */
#define ZSE_NF4_STEPS 112.03021780975463f
extern const int8_t zse_nf4_codes[16];
/* The values of MXFP4 are whole numbers of halves. */
#define ZSE_MXFP4_STEPS 2.0f
extern const int8_t zse_mxfp4_codes[16];
/* The levels of NL4 are whole numbers. */
extern const int8_t zse_nl4_codes[16];
/* A float32's exponent where the one of a scale of NL4 is 0. */
#define ZSE_NL4_EXPONENT (127 - 17)

/* Columns of a product whose weights are turned side by side. */
#define ZSE_TURNED_ROWS 32

/* Rows of activations, times a matrix, and what becomes of it. */
struct zse_product {
    const struct zse_matrix *matrix;
    const float *inputs;            /* [num_rows, columns], read where `group` is 0 */
    struct zse_quantized quantized; /* the same rows, read where it is not */
    int64_t num_rows;
    float *output;                  /* [num_rows, rows of the matrix] */
    int32_t group;                  /* columns that share a scale of int8 activations; 0: float32 */
    int32_t adds;                   /* 1: scale * product is added to what the output is */
    float scale;
};

/* float32 numbers first .. first + count of a row of any scheme; `first` begins a group. */
void zse_dequantize(const struct zse_matrix *, int64_t row, int64_t first, int64_t count,
                    float *output);
/* The product's columns first .. first + count, for all rows; `first` begins a tile. */
void zse_multiply_part(const struct zse_product *, int64_t first, int64_t count,
                       struct zse_worker *);
/* Whether its weights are turned for some rows of activations. */
int zse_takes_turned(const struct zse_product *);
/* What it chooses from. */
void zse_multiply_codes(const struct zse_product *, int64_t first, int64_t count,
                        struct zse_worker *);
void zse_multiply_one(const struct zse_product *, int64_t first, int64_t count,
                      struct zse_worker *);
void zse_multiply_turned(const struct zse_product *, int64_t first, int64_t count,
                         struct zse_worker *);
void zse_multiply_tiles(const struct zse_product *, int64_t first, int64_t count,
                        struct zse_worker *);
void zse_multiply_floats(const struct zse_product *, int64_t first, int64_t count,
                         struct zse_worker *);

#ifdef SIMD_TILE_INPUTS
/* Columns of a tile: few rows wait for weights, which lie closer together in a small one; many rows
 * are prepared anew for each tile. */
SIMD_INLINE int64_t zse_tile_rows(const struct zse_product *product) {
    return product->num_rows > 16 ? ZSE_TILE_ROWS : ZSE_STRIP_ROWS;
}
#endif

/* Whether codes are whole numbers with a scale and an offset for a group. */
SIMD_INLINE int zse_has_zeros(int scheme) {
    return scheme == ZSE_INT4 || scheme == ZSE_INT3 || scheme == ZSE_INT2;
}

/* Bytes of `count` numbers of a matrix, without scales. */
SIMD_INLINE int64_t zse_count_bytes(int scheme, int64_t count) {
    if (scheme == ZSE_FP32)
        return count * 4;
    if (scheme == ZSE_FP16 || scheme == ZSE_BF16)
        return count * 2;
    if (scheme == ZSE_INT3 || scheme == ZSE_INT2)
        return count / 8 * (scheme == ZSE_INT3 ? 3 : 2);
    return scheme == ZSE_INT8 ? count : count / 2;
}

/* Bytes of a group's scale in the file. */
SIMD_INLINE int64_t zse_scale_bytes(int scheme) {
    if (zse_has_zeros(scheme))
        return 4;
    if (scheme == ZSE_NF4 || scheme == ZSE_NL4_PAIRS)
        return 2;
    return scheme == ZSE_MXFP4 || scheme == ZSE_NL4;
}

/* Bytes of the scales of some rows of a matrix. */
SIMD_INLINE int64_t zse_count_scale_bytes(const struct zse_matrix *matrix, int64_t rows) {
    if (matrix->scheme == ZSE_INT8)
        return rows * 4;
    if (!matrix->group)
        return 0;
    return rows * (matrix->columns / matrix->group) * zse_scale_bytes(matrix->scheme);
}

/* Rows first .. first + count as a matrix of their own. */
SIMD_INLINE struct zse_matrix zse_matrix_rows(const struct zse_matrix *matrix, int64_t first,
                                              int64_t count) {
    struct zse_matrix part = *matrix;
    int64_t bytes = zse_count_bytes(matrix->scheme, first * matrix->columns);
    part.data = (const char *)matrix->data + bytes;
    if (matrix->scales)
        part.scales = (const char *)matrix->scales + zse_count_scale_bytes(matrix, first);
    part.bias = matrix->bias ? matrix->bias + first : NULL;
    part.rows = count;
    return part;
}

/* Activations from a row on. */
SIMD_INLINE struct zse_quantized zse_quantized_rows(const struct zse_quantized *quantized,
                                                    int64_t first) {
    int64_t numbers = first * (quantized->stride / 32);
    return (struct zse_quantized){quantized->codes + first * quantized->stride,
                                  quantized->scales + numbers, quantized->sums + numbers,
                                  quantized->stride};
}

SIMD_INLINE int64_t zse_smaller(int64_t left, int64_t right) {
    return left < right ? left : right;
}

/* Row `index` of a block that begins at `first`; the last one again where the matrix ends. */
SIMD_INLINE int64_t zse_block_row(const struct zse_matrix *matrix, int64_t first, int64_t index) {
    return zse_smaller(first + index, matrix->rows - 1);
}

SIMD_INLINE const int8_t *zse_table_of(int scheme) {
    if (scheme == ZSE_NF4)
        return zse_nf4_codes;
    return scheme == ZSE_MXFP4 ? zse_mxfp4_codes : zse_nl4_codes;
}

/* A group's codes of INT3 or INT2 as INT4 packs them: in two bits each of a piece's words has what
 * two of INT4 have, and a third word has the third bit of all. */
SIMD_INLINE const uint8_t *zse_widen_codes(const uint8_t *bytes, int scheme, int group,
                                           uint32_t *packed) {
    const int count = scheme == ZSE_INT3 ? 3 : 2;
    for (int piece = 0; piece < group / 32; piece++) {
        uint32_t words[3] = {0};
        memcpy(words, bytes + piece * count * 4, (size_t)count * 4);
        for (uint32_t i = 0; i < 4; i++)
            packed[piece * 4 + i] = (words[i / 2] >> i % 2 * 2 & 0x33333333u) |
                                    (words[2] >> i & 0x11111111u) << 2;
    }
    return (const uint8_t *)packed;
}

SIMD_INLINE struct simd_codes zse_load_codes(const uint8_t *bytes, int scheme, int group) {
    if (scheme == ZSE_INT8)
        return simd_load_int8(bytes, group);
    uint32_t packed[ZSE_ACTIVATION_GROUP / 8];
    if (scheme == ZSE_INT3 || scheme == ZSE_INT2)
        bytes = zse_widen_codes(bytes, scheme, group, packed);
    struct simd_codes codes = simd_unpack_int4(bytes, group);
    if (zse_has_zeros(scheme))
        return codes;
    return simd_look_up(codes, zse_table_of(scheme), group);
}

/* The scales of eight rows' groups, and what INT4 and fewer bits add for each column, or NL4_PAIRS' scales of the
 * last 16; none of INT8, whose rows have a scale each. */
struct zse_factors {
    simd_floats scales;
    simd_floats zeros;
};

typedef uint8_t zse_eight_bytes __attribute__((vector_size(SIMD_ROWS)));

/* Eight exponents of MXFP4 as the powers of two that they stand for: bits 23 to 30 of a float32,
 * but for the least, 2^-127, which is not a normal one. */
SIMD_INLINE simd_floats zse_widen_exponents(const void *exponents) {
    zse_eight_bytes bytes;
    memcpy(&bytes, exponents, sizeof bytes);
    simd_integers bits = __builtin_convertvector(bytes, simd_integers) << 23;
    return (simd_floats)(bits | ((bits == 0) & 0x00400000));
}

/* Eight scales of NL4, in the low bytes: their exponents and mantissas are the low bits of a
 * float32's exponent and the high ones of its mantissa. */
SIMD_INLINE simd_floats zse_widen_minifloats(simd_integers bytes) {
    return (simd_floats)((((bytes & 0x7F) << 20) + (ZSE_NL4_EXPONENT << 23)) | bytes >> 7 << 31);
}

SIMD_INLINE void zse_load_minifloats(const char *scales, int scheme, struct zse_factors *factors) {
    if (scheme == ZSE_NL4) {
        zse_eight_bytes bytes;
        memcpy(&bytes, scales, sizeof bytes);
        factors->scales = zse_widen_minifloats(__builtin_convertvector(bytes, simd_integers));
        return;
    }
    simd_halves pairs;
    memcpy(&pairs, scales, sizeof pairs);
    simd_integers wide = __builtin_convertvector(pairs, simd_integers);
    factors->scales = zse_widen_minifloats(wide & 0xFF);
    factors->zeros = zse_widen_minifloats(wide >> 8);
}

/* Eight rows' scales of a group, side by side. */
SIMD_INLINE struct zse_factors zse_load_factors(const char *scales, int scheme) {
    struct zse_factors factors = {simd_all(1.0f), simd_all(0.0f)};
    if (zse_has_zeros(scheme))
        simd_widen_pairs(scales, &factors.scales, &factors.zeros);
    else if (scheme == ZSE_NF4)
        factors.scales = simd_widen_fp16(scales);
    else if (scheme == ZSE_MXFP4)
        factors.scales = zse_widen_exponents(scales);
    else if (scheme == ZSE_NL4 || scheme == ZSE_NL4_PAIRS)
        zse_load_minifloats(scales, scheme, &factors);
    return factors;
}

/* Eight plain numbers, fp32, fp16 or bf16. */
SIMD_INLINE simd_floats zse_widen_vector(const char *numbers, int scheme) {
    if (scheme == ZSE_FP16)
        return simd_widen_fp16(numbers);
    if (scheme == ZSE_BF16)
        return simd_widen_bf16(numbers);
    return simd_load((const float *)numbers);
}

/* Rows are shorter than what a processor finds out about them by itself: ask for the next ones. */
SIMD_INLINE void zse_prefetch(const void *bytes, int64_t count) {
    for (int64_t i = 0; i < count; i += 64)
        __builtin_prefetch((const char *)bytes + i, 0, 3);
}

SIMD_INLINE simd_floats zse_load_some(const float *numbers, int64_t count) {
    float padded[SIMD_ROWS] = {0};
    if (count >= SIMD_ROWS)
        return simd_load(numbers);
    memcpy(padded, numbers, (size_t)count * sizeof *numbers);
    return simd_load(padded);
}

/* Add a group's product to the totals of eight columns; that of NL4_PAIRS is scaled already. `scale`
 * and `sum` are those of the group's activations. */
SIMD_INLINE void zse_add_group(simd_floats *total, simd_floats sums,
                               const struct zse_factors *factors, float scale, float sum,
                               int scheme) {
    int is_scaled = scheme == ZSE_INT8 || scheme == ZSE_NL4_PAIRS;
    simd_floats factor = is_scaled ? simd_all(scale) : factors->scales * simd_all(scale);
    *total = simd_fused(sums, factor, *total);
    if (zse_has_zeros(scheme))
        *total = simd_fused(factors->zeros, simd_all(sum), *total);
}

/* What totals of eight columns are multiplied by in the end. */
SIMD_INLINE simd_floats zse_column_factors(const struct zse_matrix *matrix, int64_t first) {
    if (zse_has_zeros(matrix->scheme) || matrix->scheme == ZSE_NL4 ||
        matrix->scheme == ZSE_NL4_PAIRS)
        return simd_all(1.0f);
    if (matrix->scheme == ZSE_NF4)
        return simd_all(1.0f / ZSE_NF4_STEPS);
    if (matrix->scheme == ZSE_MXFP4)
        return simd_all(1.0f / ZSE_MXFP4_STEPS);
    return zse_load_some((const float *)matrix->scales + first, matrix->rows - first);
}

/* What becomes of the sums of a row's columns `first` and following; none beyond the matrix. */
SIMD_INLINE void zse_finish(const struct zse_product *product, int64_t row, int64_t first,
                            simd_floats sums) {
    const struct zse_matrix *matrix = product->matrix;
    float *output = product->output + row * matrix->rows + first;
    int64_t count = zse_smaller(matrix->rows - first, SIMD_ROWS);
    if (matrix->bias)
        sums += zse_load_some(matrix->bias + first, count);
    if (product->adds)
        sums = simd_fused(simd_all(product->scale), sums, zse_load_some(output, count));
    if (count == SIMD_ROWS)
        simd_store(output, sums);
    else
        memcpy(output, &sums, (size_t)count * sizeof *output);
}

#endif
