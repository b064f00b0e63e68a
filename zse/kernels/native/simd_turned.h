/* Weights turned so that a vector has four columns of as many rows as it has lanes: products with
 * four columns of a row of activations, the same in all lanes, need no sums across lanes. */
#ifndef ZSE_SIMD_TURNED_H
#define ZSE_SIMD_TURNED_H

#include "simd.h"

#if defined(__AVX512VNNI__) && defined(__AVX512VL__) && defined(__AVX512BW__)
#include "simd_turned512.h"
#elif defined(__AVXVNNI__)
#include "simd_turned256.h"
#endif

#ifdef SIMD_TURNED_ROWS
/* Vectors that so many bytes of rows become. */
#define SIMD_TURNED_WORDS (SIMD_TURNED_BYTES / 4)

SIMD_INLINE simd_turned simd_turned_start(int32_t number) {
    return (simd_turned){0} + number;
}

SIMD_INLINE simd_turned simd_turned_low(simd_turned bytes) {
    return bytes & 0x0F0F0F0F;
}

SIMD_INLINE simd_turned simd_turned_high(simd_turned bytes) {
    return simd_turned_low(bytes >> 4);
}

/* Codes -128 to 127 as unsigned bytes, 128 more. */
SIMD_INLINE simd_turned simd_turned_unsigned(simd_turned codes) {
    return codes ^ (int32_t)0x80808080;
}

/* Four columns of a row of activations, for all lanes. */
SIMD_INLINE simd_turned simd_turned_word(const int8_t *activations) {
    int32_t word;
    memcpy(&word, activations, sizeof word);
    return simd_turned_start(word);
}

SIMD_INLINE simd_turned_floats simd_turned_widen(simd_turned sums) {
    return __builtin_convertvector(sums, simd_turned_floats);
}

SIMD_INLINE simd_turned_floats simd_turned_number(float number) {
    return (simd_turned_floats)(simd_turned_start(0)) + number;
}
#endif

#endif
