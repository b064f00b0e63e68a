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
typedef uint8_t vubyte __attribute__((vector_size(VECTOR_LANES)));

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

/* What is left of a vector when halves are joined down to four lanes: one order for every width. */
typedef float vfour __attribute__((vector_size(16)));
typedef int32_t vint_four __attribute__((vector_size(16)));
#define QUARTER(values, first) \
    __builtin_shufflevector(values, values, first, first + 1, first + 2, first + 3)

ALWAYS_INLINE float vsum(vfloat values) {
#if VECTOR_LANES == 16
    vfour four = (QUARTER(values, 0) + QUARTER(values, 8)) +
                 (QUARTER(values, 4) + QUARTER(values, 12));
#elif VECTOR_LANES == 8
    vfour four = QUARTER(values, 0) + QUARTER(values, 4);
#else
    vfour four = values;
#endif
    return (four[0] + four[2]) + (four[1] + four[3]);
}

ALWAYS_INLINE vfour four_largest(vfour left, vfour right) {
    vint_four mask = left > right;
    return (vfour)((mask & (vint_four)left) | (~mask & (vint_four)right));
}

ALWAYS_INLINE float vmaximum(vfloat values) {
#if VECTOR_LANES == 16
    vfour four = four_largest(four_largest(QUARTER(values, 0), QUARTER(values, 8)),
                              four_largest(QUARTER(values, 4), QUARTER(values, 12)));
#elif VECTOR_LANES == 8
    vfour four = four_largest(QUARTER(values, 0), QUARTER(values, 4));
#else
    vfour four = values;
#endif
    float left = four[0] > four[1] ? four[0] : four[1];
    float right = four[2] > four[3] ? four[2] : four[3];
    return left > right ? left : right;
}

/* Exchange rows and columns of a square of numbers: each row is woven together with the one half a
 * square away, as often as halving leads to one. */
#if VECTOR_LANES == 16
#define WOVEN_FIRST 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define WOVEN_SECOND 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif VECTOR_LANES == 8
#define WOVEN_FIRST 0, 8, 1, 9, 2, 10, 3, 11
#define WOVEN_SECOND 4, 12, 5, 13, 6, 14, 7, 15
#else
#define WOVEN_FIRST 0, 4, 1, 5
#define WOVEN_SECOND 2, 6, 3, 7
#endif

ALWAYS_INLINE void vturn(vfloat *rows) {
    for (int stage = 1; stage < VECTOR_LANES; stage *= 2) {
        vfloat woven[VECTOR_LANES];
        for (int i = 0; i < VECTOR_LANES / 2; i++) {
            vfloat other = rows[i + VECTOR_LANES / 2];
            woven[2 * i] = __builtin_shufflevector(rows[i], other, WOVEN_FIRST);
            woven[2 * i + 1] = __builtin_shufflevector(rows[i], other, WOVEN_SECOND);
        }
        for (int i = 0; i < VECTOR_LANES; i++) rows[i] = woven[i];
    }
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

ALWAYS_INLINE float half_value(uint16_t bits) {
#if defined(__F16C__)
    return _cvtsh_ss(bits);
#else
    uint16_t first[VECTOR_LANES] = {bits};
    return vload_half(first)[0];
#endif
}

#endif
