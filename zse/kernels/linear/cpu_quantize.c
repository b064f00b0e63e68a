/* Activations as int8: the largest value of a group gets code 127, halves are rounded to even. */
#include <float.h>

#include "../native/share.h"
#include "cpu.h"

#define MAX_CODE 127.0f

typedef int8_t codes_of_vector __attribute__((vector_size(SIMD_ROWS)));

/* The largest magnitude. Magnitudes are compared as integers, which puts NaN above all numbers. */
static float largest_of(const float *numbers, int count) {
    simd_integers largest = {0};
    for (int i = 0; i < count; i += SIMD_ROWS) {
        simd_integers bits = (simd_integers)simd_load(numbers + i) & 0x7FFFFFFF;
        simd_integers is_larger = bits > largest;
        largest = (bits & is_larger) | (largest & ~is_larger);
    }
    int32_t bits = 0;
    for (int i = 0; i < SIMD_ROWS; i++)
        bits = largest[i] > bits ? largest[i] : bits;
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

/* Adding 1.5 * 2^23 leaves a number rounded to even in the low bits of the sum. */
static simd_integers round_to_even(simd_floats numbers) {
    const float shift = 12582912.0f;
    return (simd_integers)(numbers + shift) - (simd_integers)simd_all(shift);
}

static void quantize_group(const float *numbers, int count, int8_t *codes, float *scale,
                           float *scaled_sum) {
    float divided = largest_of(numbers, count) / MAX_CODE;
    /* A group of zeros, or of numbers whose scale has no reciprocal, becomes zeros. */
    float inverse = divided >= FLT_MIN && divided <= FLT_MAX ? 1.0f / divided : 0.0f;
    simd_integers sums = {0};
    for (int i = 0; i < count; i += SIMD_ROWS) {
        simd_floats vector = simd_load(numbers + i) * inverse;
        simd_integers whole = inverse > 0.0f ? round_to_even(vector) : (simd_integers){0};
        codes_of_vector narrow = __builtin_convertvector(whole, codes_of_vector);
        memcpy(codes + i, &narrow, sizeof narrow);
        sums += whole;
    }
    int32_t sum = 0;
    for (int i = 0; i < SIMD_ROWS; i++)
        sum += sums[i];
    *scale = divided >= FLT_MIN || divided != divided ? divided : 0.0f;
    *scaled_sum = *scale * (float)sum;
}

void zse_quantize_columns(const float *row, int64_t row_index, int64_t first, int64_t count,
                          int32_t group, const struct zse_quantized *output) {
    int8_t *codes = output->codes + row_index * output->stride;
    int64_t scales = row_index * (output->stride / 32);
    for (int64_t column = first; column < first + count; column += group) {
        float padded[ZSE_ACTIVATION_GROUP] = {0};
        const float *numbers = row + column;
        int64_t place = scales + column / group;
        int64_t rest = first + count - column;
        if (rest < group)
            numbers = memcpy(padded, numbers, (size_t)rest * sizeof *numbers);
        quantize_group(numbers, group, codes + column, output->scales + place,
                       output->sums + place);
    }
}

static int64_t count_pieces(const struct zse_operation *operation, const struct zse_step *step,
                            int num_threads) {
    (void)num_threads;
    return rows_of_operation(operation, step);
}

static void run_piece(const struct zse_operation *operation, const struct zse_step *step,
                      int64_t piece, struct zse_worker *worker) {
    (void)worker;
    int64_t width = operation->width;
    zse_quantize_columns(step->registers[operation->input] + piece * width, piece, 0, width,
                         operation->quantizes, &step->quantized);
}

const struct zse_kernel zse_quantize = {count_pieces, run_piece};
