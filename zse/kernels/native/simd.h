/* What the kernels need of an instruction set beyond portable vectors: products of 8-bit numbers.
 *
 * Each header has the same functions. `simd_codes` is one row's group of weights, a byte each, in
 * order; `simd_lanes` the parts of its product with a group of activations; eight rows' lanes are
 * summed into a vector with an element a row. All sums are exact, so every instruction set has the
 * same. A group is a constant where these functions are inlined.
 */
#ifndef ZSE_SIMD_H
#define ZSE_SIMD_H

#include <stdint.h>
#include <string.h>

/* Wide vectors are arguments of inlined functions only: how others would pass them is no matter. */
#pragma GCC diagnostic ignored "-Wpsabi"

#define SIMD_INLINE static inline __attribute__((always_inline))
/* Rows of weights whose sums lie side by side in a vector. */
#define SIMD_ROWS 8

typedef float simd_floats __attribute__((vector_size(4 * SIMD_ROWS)));
typedef int32_t simd_integers __attribute__((vector_size(4 * SIMD_ROWS)));
typedef uint16_t simd_halves __attribute__((vector_size(2 * SIMD_ROWS)));

SIMD_INLINE simd_floats simd_load(const float *numbers) {
    simd_floats vector;
    memcpy(&vector, numbers, sizeof vector);
    return vector;
}

SIMD_INLINE void simd_store(float *numbers, simd_floats vector) {
    memcpy(numbers, &vector, sizeof vector);
}

SIMD_INLINE simd_floats simd_all(float number) {
    return (simd_floats){number, number, number, number, number, number, number, number};
}

SIMD_INLINE simd_floats simd_widen_bf16(const void *numbers) {
    simd_halves halves;
    memcpy(&halves, numbers, sizeof halves);
    return (simd_floats)(__builtin_convertvector(halves, simd_integers) << 16);
}

#if defined(__AVX512VNNI__) && defined(__AVX512VL__) && defined(__AVX512BW__)
#include "simd_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "simd_avx2.h"
#elif defined(__aarch64__)
#include "simd_neon.h"
#else
#include "simd_plain.h"
#endif

#endif
