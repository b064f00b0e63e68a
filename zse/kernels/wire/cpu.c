/* Rows of the residual stream as they cross a wire: see __init__.py.
 *
 * Nothing here may be fused or reordered by the compiler: both ends must see the same bytes.
 */
#include <math.h>
#include <string.h>

#include "zse.h"

#if defined(__clang__) /* gcc, which builds it for its sanitizers, knows no such pragma */
#pragma STDC FP_CONTRACT OFF
#endif

enum { RAW, BF16, FP8, INT8, INT4 };
enum { GROUP = 64 };

static uint16_t narrow(float number) {
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float wide(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

static float greater(float number, float most) {
    float size = fabsf(number);
    return size > most ? size : most; /* passes over what is no number */
}

/* In lanes, since a compiler may not part a chain of comparisons by itself. */
static float largest(const float *numbers, int64_t count) {
    float lanes[16] = {0}, most = 0.0f;
    int64_t i = 0;
    for (; i + 16 <= count; i += 16)
        for (int lane = 0; lane < 16; lane++) lanes[lane] = greater(numbers[i + lane], lanes[lane]);
    for (; i < count; i++) most = greater(numbers[i], most);
    for (int lane = 0; lane < 16; lane++) most = greater(lanes[lane], most);
    return most;
}

/* Writes a scale that brings the largest number to `limit`; returns what it is divided by. */
static float put_scale(float most, float limit, uint8_t *output) {
    uint16_t half = narrow(most / limit);
    memcpy(output, &half, sizeof half);
    return wide(half);
}

static float get_scale(const uint8_t *input) {
    uint16_t half;
    memcpy(&half, input, sizeof half);
    return wide(half);
}

static int rounded(float number, float limit) {
    if (!(number > -limit)) number = -limit; /* takes what is no number, too */
    if (number > limit) number = limit;
    return (int)rintf(number);
}

/* e4m3 of a number within 448 of zero, to the nearest, ties to even. */
static uint8_t to_e4m3(float number) {
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    uint8_t sign = (uint8_t)(bits >> 24 & 0x80);
    float size = fabsf(number);
    if (!(size < 448.0f)) return sign | 0x7e;
    if (size < 0x1p-6f) return sign | (uint8_t)rintf(size * 512.0f);
    bits &= 0x7fffffff;
    bits += 0x7ffff + (bits >> 20 & 1);
    uint32_t code = (bits >> 20) - ((127 - 7) << 3);
    return sign | (uint8_t)(code > 0x7e ? 0x7e : code);
}

static float from_e4m3(uint8_t code) {
    int exponent = code >> 3 & 15;
    float mantissa = (float)(code & 7);
    float size = exponent ? ldexpf(8.0f + mantissa, exponent - 10) : ldexpf(mantissa, -9);
    return code & 0x80 ? -size : size;
}

typedef float eight __attribute__((vector_size(32)));

/* Sums and differences of numbers that stand some places apart within eight. */
#define MIX_EIGHT(numbers, sign, ...)                                                 \
    numbers = __builtin_shufflevector(numbers, numbers, __VA_ARGS__) + numbers * sign

/* Hadamard's transform, divided by the square root of 64: its own inverse. */
static void mix(float *numbers) {
    const eight one = {1, -1, 1, -1, 1, -1, 1, -1}, two = {1, 1, -1, -1, 1, 1, -1, -1};
    const eight four = {1, 1, 1, 1, -1, -1, -1, -1};
    eight parts[GROUP / 8];
    memcpy(parts, numbers, sizeof parts);
    for (int part = 0; part < GROUP / 8; part++) {
        eight found = parts[part];
        MIX_EIGHT(found, one, 1, 0, 3, 2, 5, 4, 7, 6);
        MIX_EIGHT(found, two, 2, 3, 0, 1, 6, 7, 4, 5);
        MIX_EIGHT(found, four, 4, 5, 6, 7, 0, 1, 2, 3);
        parts[part] = found;
    }
    for (int half = 1; half < GROUP / 8; half *= 2)
        for (int part = 0; part < GROUP / 8; part++)
            if (!(part & half)) {
                eight left = parts[part], right = parts[part + half];
                parts[part] = left + right;
                parts[part + half] = left - right;
            }
    for (int part = 0; part < GROUP / 8; part++) parts[part] *= 0.125f;
    memcpy(numbers, parts, sizeof parts);
}

static uint8_t *put_int8(const float *row, int64_t count, uint8_t *output) {
    float scale = put_scale(largest(row, count), 127.0f, output);
    output += 2;
    for (int64_t i = 0; i < count; i++)
        *output++ = (uint8_t)(int8_t)(scale > 0.0f ? rounded(row[i] / scale, 127.0f) : 0);
    return output;
}

static const uint8_t *get_int8(const uint8_t *input, int64_t count, float *row) {
    float scale = get_scale(input);
    input += 2;
    for (int64_t i = 0; i < count; i++) row[i] = (float)(int8_t)*input++ * scale;
    return input;
}

static uint8_t *put_int4(const float *row, int64_t count, uint8_t *output) {
    float mixed[GROUP] = {0};
    memcpy(mixed, row, (size_t)count * sizeof *row);
    mix(mixed);
    float scale = put_scale(largest(mixed, GROUP), 7.0f, output);
    output += 2;
    for (int i = 0; i < GROUP / 2; i++) {
        int low = scale > 0.0f ? rounded(mixed[i] / scale, 7.0f) : 0;
        int high = scale > 0.0f ? rounded(mixed[i + GROUP / 2] / scale, 7.0f) : 0;
        *output++ = (uint8_t)((low + 8) | (high + 8) << 4);
    }
    return output;
}

static const uint8_t *get_int4(const uint8_t *input, int64_t count, float *row) {
    float mixed[GROUP];
    float scale = get_scale(input);
    input += 2;
    for (int i = 0; i < GROUP / 2; i++) {
        mixed[i] = (float)((input[i] & 15) - 8) * scale;
        mixed[i + GROUP / 2] = (float)((input[i] >> 4) - 8) * scale;
    }
    mix(mixed);
    memcpy(row, mixed, (size_t)count * sizeof *row);
    return input + GROUP / 2;
}

static uint8_t *put_row(int codec, const float *row, int64_t width, uint8_t *output) {
    if (codec == BF16) {
        for (int64_t i = 0; i < width; i++) {
            uint16_t half = narrow(row[i]);
            memcpy(output + 2 * i, &half, sizeof half);
        }
        return output + 2 * width;
    }
    if (codec == FP8) {
        float scale = put_scale(largest(row, width), 448.0f, output);
        for (int64_t i = 0; i < width; i++)
            output[2 + i] = scale > 0.0f ? to_e4m3(row[i] / scale) : 0;
        return output + 2 + width;
    }
    for (int64_t i = 0; i < width; i += GROUP) {
        int64_t count = width - i < GROUP ? width - i : GROUP;
        output = codec == INT8 ? put_int8(row + i, count, output) : put_int4(row + i, count, output);
    }
    return output;
}

static const uint8_t *get_row(int codec, const uint8_t *input, int64_t width, float *row) {
    if (codec == BF16) {
        for (int64_t i = 0; i < width; i++) row[i] = get_scale(input + 2 * i);
        return input + 2 * width;
    }
    if (codec == FP8) {
        float scale = get_scale(input);
        for (int64_t i = 0; i < width; i++) row[i] = from_e4m3(input[2 + i]) * scale;
        return input + 2 + width;
    }
    for (int64_t i = 0; i < width; i += GROUP) {
        int64_t count = width - i < GROUP ? width - i : GROUP;
        input = codec == INT8 ? get_int8(input, count, row + i) : get_int4(input, count, row + i);
    }
    return input;
}

void zse_write_rows(int32_t codec, const float *rows, int64_t count, int64_t width,
                    uint8_t *output) {
    if (codec == RAW) {
        memcpy(output, rows, (size_t)(count * width) * sizeof *rows);
        return;
    }
    for (int64_t row = 0; row < count; row++)
        output = put_row(codec, rows + row * width, width, output);
}

void zse_read_rows(int32_t codec, const uint8_t *input, int64_t count, int64_t width,
                   float *rows) {
    if (codec == RAW) {
        memcpy(rows, input, (size_t)(count * width) * sizeof *rows);
        return;
    }
    for (int64_t row = 0; row < count; row++)
        input = get_row(codec, input, width, rows + row * width);
}
