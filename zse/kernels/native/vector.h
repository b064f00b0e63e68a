/* Vectors of the library's width in portable C: loads of every number that a cache holds, tails,
 * reductions in one fixed order. The compiler makes of them what the instruction set has. */
#ifndef ZSE_VECTOR_H
#define ZSE_VECTOR_H

#include <stdint.h>
#include <string.h>

#if defined(__F16C__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
#define VECTOR_LANES 16
#elif defined(__AVX__)
#define VECTOR_LANES 8
#else
#define VECTOR_LANES 4
#endif

typedef float vfloat __attribute__((vector_size(4 * VECTOR_LANES)));
typedef int32_t vint __attribute__((vector_size(4 * VECTOR_LANES)));
typedef uint16_t vshort __attribute__((vector_size(2 * VECTOR_LANES)));
typedef int8_t vbyte __attribute__((vector_size(VECTOR_LANES)));

#define ALWAYS_INLINE static inline __attribute__((always_inline))

ALWAYS_INLINE vfloat vload(const float *from) {
    vfloat values;
    memcpy(&values, from, sizeof values);
    return values;
}

ALWAYS_INLINE void vstore(float *to, vfloat values) { memcpy(to, &values, sizeof values); }

/* The first `count` numbers, and zeros behind them. */
ALWAYS_INLINE vfloat vload_some(const float *from, int64_t count) {
    if (count >= VECTOR_LANES) return vload(from);
    vfloat values = {0};
    memcpy(&values, from, (size_t)count * sizeof(float));
    return values;
}

ALWAYS_INLINE void vstore_some(float *to, vfloat values, int64_t count) {
    memcpy(to, &values, (size_t)(count < VECTOR_LANES ? count : VECTOR_LANES) * sizeof(float));
}

ALWAYS_INLINE vfloat vbroadcast(float value) { return value - (vfloat){0}; }

/* Lanes of `yes` where the mask is set, of `no` elsewhere. */
ALWAYS_INLINE vfloat vselect(vint mask, vfloat yes, vfloat no) {
    return (vfloat)((mask & (vint)yes) | (~mask & (vint)no));
}

ALWAYS_INLINE vfloat vlargest(vfloat left, vfloat right) {
    return vselect(left > right, left, right);
}

ALWAYS_INLINE vfloat vabsolute(vfloat values) { return (vfloat)((vint)values & 0x7fffffff); }

/* The lanes' sum: halves are added until one number is left. */
ALWAYS_INLINE float vsum(vfloat values) {
    float lanes[VECTOR_LANES];
    memcpy(lanes, &values, sizeof lanes);
    for (int width = VECTOR_LANES / 2; width > 0; width /= 2)
        for (int lane = 0; lane < width; lane++) lanes[lane] += lanes[lane + width];
    return lanes[0];
}

ALWAYS_INLINE float vmaximum(vfloat values) {
    float largest = values[0];
    for (int lane = 1; lane < VECTOR_LANES; lane++)
        largest = values[lane] > largest ? values[lane] : largest;
    return largest;
}

ALWAYS_INLINE vfloat vload_bfloat(const uint16_t *from) {
    vshort bits;
    memcpy(&bits, from, sizeof bits);
    return (vfloat)(__builtin_convertvector(bits, vint) << 16);
}

ALWAYS_INLINE vfloat vload_int8(const int8_t *from) {
    vbyte codes;
    memcpy(&codes, from, sizeof codes);
    return __builtin_convertvector(__builtin_convertvector(codes, vint), vfloat);
}

ALWAYS_INLINE vfloat vload_half(const uint16_t *from) {
#if defined(__AVX512F__)
    return (vfloat)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
#elif defined(__F16C__)
    return (vfloat)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
#elif defined(__aarch64__)
    return (vfloat)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
#else
    vshort bits;
    memcpy(&bits, from, sizeof bits);
    vint wide = __builtin_convertvector(bits, vint);
    vint magnitude = (wide & 0x7fff) << 13;
    /* Exponents are 112 apart; multiplying by 2^112 also makes subnormal numbers right. */
    vint scaled = (vint)((vfloat)magnitude * 0x1p112f);
    scaled |= (magnitude >= (0x7c00 << 13)) & 0x7f800000;
    return (vfloat)(scaled | ((wide & 0x8000) << 16));
#endif
}

#endif
