/* Numbers of every scheme as float32. */
#include "cpu.h"

typedef uint8_t bytes_of_vector __attribute__((vector_size(SIMD_ROWS)));
typedef int8_t codes_of_vector __attribute__((vector_size(SIMD_ROWS)));

static const float mxfp4_values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                       -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

static const float nf4_values[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

SIMD_INLINE void widen_all(const char *numbers, int scheme, int64_t count, float *output) {
    const int64_t size = scheme == ZSE_FP32 ? 4 : 2;
    int64_t i = 0;
    for (; i + SIMD_ROWS <= count; i += SIMD_ROWS)
        simd_store(output + i, zse_widen_vector(numbers + i * size, scheme));
    if (i < count) {
        char padded[4 * SIMD_ROWS] = {0};
        memcpy(padded, numbers + i * size, (size_t)((count - i) * size));
        simd_floats vector = zse_widen_vector(padded, scheme);
        memcpy(output + i, &vector, (size_t)(count - i) * sizeof *output);
    }
}

void zse_widen(const void *numbers, int32_t scheme, int64_t count, float *output) {
    if (scheme == ZSE_FP16)
        widen_all(numbers, ZSE_FP16, count, output);
    else if (scheme == ZSE_BF16)
        widen_all(numbers, ZSE_BF16, count, output);
    else
        memcpy(output, numbers, (size_t)count * sizeof *output);
}

static float widen_half(const uint16_t *number) {
    uint16_t padded[SIMD_ROWS] = {*number};
    return simd_widen_fp16(padded)[0];
}

static simd_floats widen_codes(bytes_of_vector codes) {
    return __builtin_convertvector(__builtin_convertvector(codes, simd_integers), simd_floats);
}

static void dequantize_int8(const int8_t *codes, float scale, int64_t count, float *output) {
    int64_t i = 0;
    for (; i + SIMD_ROWS <= count; i += SIMD_ROWS) {
        codes_of_vector narrow;
        memcpy(&narrow, codes + i, sizeof narrow);
        simd_integers whole = __builtin_convertvector(narrow, simd_integers);
        simd_store(output + i, __builtin_convertvector(whole, simd_floats) * scale);
    }
    for (; i < count; i++)
        output[i] = (float)codes[i] * scale;
}

/* A group's first half lies in the low nibbles of its bytes, its second half in the high ones. */
static void dequantize_int4(const uint8_t *packed, const uint16_t *pair, int group, float *output) {
    float scale = widen_half(pair), zero = widen_half(pair + 1);
    for (int i = 0; i < group / 2; i += SIMD_ROWS) {
        bytes_of_vector bytes;
        memcpy(&bytes, packed + i, sizeof bytes);
        simd_floats low = widen_codes(bytes & 15), high = widen_codes(bytes >> 4);
        simd_store(output + i, simd_fused(low, simd_all(scale), simd_all(zero)));
        simd_store(output + group / 2 + i, simd_fused(high, simd_all(scale), simd_all(zero)));
    }
}

static void look_up(const float *values, const uint8_t *packed, float scale, int group,
                    float *output) {
    for (int i = 0; i < group / 2; i++) {
        output[i] = values[packed[i] & 15] * scale;
        output[group / 2 + i] = values[packed[i] >> 4] * scale;
    }
}

static float widen_minifloat(const uint8_t *scale) {
    simd_integers bytes = {*scale};
    return zse_widen_minifloats(bytes)[0];
}

/* The low nibbles of NL4_PAIRS are a group of 16, the high ones the next. */
static void look_up_levels(const uint8_t *packed, const uint8_t *scales, int scheme,
                           float *output) {
    float low = widen_minifloat(scales);
    float high = scheme == ZSE_NL4 ? low : widen_minifloat(scales + 1);
    for (int i = 0; i < 16; i++) {
        output[i] = (float)zse_nl4_codes[packed[i] & 15] * low;
        output[16 + i] = (float)zse_nl4_codes[packed[i] >> 4] * high;
    }
}

static float widen_exponent(const uint8_t *exponent) {
    uint8_t padded[SIMD_ROWS] = {*exponent};
    return zse_widen_exponents(padded)[0];
}

void zse_dequantize(const struct zse_matrix *matrix, int64_t row, int64_t first, int64_t count,
                    float *output) {
    int64_t place = row * matrix->columns + first;
    const char *data = matrix->data;
    if (matrix->scheme == ZSE_FP32) {
        zse_widen(data + place * 4, ZSE_FP32, count, output);
        return;
    }
    if (matrix->scheme == ZSE_FP16 || matrix->scheme == ZSE_BF16) {
        zse_widen(data + place * 2, matrix->scheme, count, output);
        return;
    }
    if (matrix->scheme == ZSE_INT8) {
        float scale = ((const float *)matrix->scales)[row];
        dequantize_int8((const int8_t *)data + place, scale, count, output);
        return;
    }
    const uint16_t *scales = matrix->scales;
    const uint8_t *bytes = matrix->scales;
    for (int64_t i = 0; i < count; i += matrix->group) {
        const uint8_t *packed =
            (const uint8_t *)data + zse_count_bytes(matrix->scheme, place + i);
        uint32_t wide[ZSE_ACTIVATION_GROUP / 8];
        int64_t index = (place + i) / matrix->group;
        if (matrix->scheme == ZSE_INT3 || matrix->scheme == ZSE_INT2)
            packed = zse_widen_codes(packed, matrix->scheme, matrix->group, wide);
        if (zse_has_zeros(matrix->scheme))
            dequantize_int4(packed, scales + 2 * index, matrix->group, output + i);
        else if (matrix->scheme == ZSE_NF4)
            look_up(nf4_values, packed, widen_half(scales + index), matrix->group, output + i);
        else if (matrix->scheme != ZSE_MXFP4)
            look_up_levels(packed, bytes + index * zse_scale_bytes(matrix->scheme),
                           matrix->scheme, output + i);
        else
            look_up(mxfp4_values, packed, widen_exponent(bytes + index), matrix->group,
                    output + i);
    }
}
