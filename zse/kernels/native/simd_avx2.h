/* AVX2: bytes are multiplied in pairs, unsigned by signed, into 16 bits. */
#include "simd_x86.h"

/* Of codes 0 to 15: the four products of 128 columns fit in 16 bits, 8 * 15 * 127. */
SIMD_INLINE simd_lanes simd_dot_small(struct simd_codes codes, const int8_t *activations,
                                      int group) {
    const __m256i *columns = (const __m256i *)activations;
    __m256i pairs = _mm256_maddubs_epi16(codes.part[0], _mm256_load_si256(columns));
    for (int i = 1; i < group / 32; i++) {
        __m256i products = _mm256_maddubs_epi16(codes.part[i], _mm256_load_si256(columns + i));
        pairs = _mm256_add_epi16(pairs, products);
    }
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

/* Of codes -128 to 127, whose sign moves to the activation: 2 * 128 * 127 fits in 16 bits. */
SIMD_INLINE simd_lanes simd_dot_signed(struct simd_codes codes, const int8_t *activations,
                                       int group) {
    const __m256i *columns = (const __m256i *)activations;
    __m256i sums = _mm256_setzero_si256();
    for (int i = 0; i < group / 32; i++) {
        __m256i turned = _mm256_sign_epi8(_mm256_load_si256(columns + i), codes.part[i]);
        __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(codes.part[i]), turned);
        sums = _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    return sums;
}

/* Tiles: weights of sixteen rows turned so that a vector has the same columns of eight rows, which
 * are multiplied with the columns of four rows of activations at a time. */
#define SIMD_TILE_INPUTS 4
#define SIMD_TILE_VECTORS 2
#define SIMD_TILE_WIDTH 8
typedef simd_floats simd_wide;
/* What activations of signed codes are prepared as: 16 bits, as two products fill 16 bits. */
typedef int16_t simd_prepared;

/* Bytes of two times eight rows' group in a tile. */
SIMD_INLINE int64_t simd_strip_bytes(int is_small, int group) {
    return (int64_t)group * SIMD_TILE_VECTORS * SIMD_TILE_WIDTH * (is_small ? 1 : 2);
}

SIMD_INLINE simd_wide simd_wide_fused(simd_wide left, simd_wide right, simd_wide added) {
    return simd_fused(left, right, added);
}

SIMD_INLINE void simd_prepare(const int8_t *codes, int64_t count, simd_prepared *output) {
    for (int64_t i = 0; i < count; i += 16) {
        __m128i narrow = _mm_loadu_si128((const __m128i *)(codes + i));
        _mm256_store_si256((__m256i *)(output + i), _mm256_cvtepi8_epi16(narrow));
    }
}

/* Put a group of eight rows into a tile as its vector number `vector`. */
SIMD_INLINE void simd_pack_small(const struct simd_codes *codes, int vector, int group,
                                 void *tile) {
    for (int part = 0; part < group / 32; part++) {
        __m256i rows[8];
        for (int row = 0; row < 8; row++)
            rows[row] = codes[row].part[part];
        simd_turn(rows, SIMD_TILE_VECTORS,
                  (__m256i *)tile + part * 8 * SIMD_TILE_VECTORS + vector);
    }
}

SIMD_INLINE void simd_pack_signed(const struct simd_codes *codes, int vector, int group,
                                  void *tile) {
    for (int part = 0; part < group / 16; part++) {
        __m256i rows[8];
        for (int row = 0; row < 8; row++) {
            __m256i both = codes[row].part[part / 2];
            __m128i half = part % 2 ? _mm256_extracti128_si256(both, 1)
                                    : _mm256_castsi256_si128(both);
            rows[row] = _mm256_cvtepi8_epi16(half);
        }
        simd_turn(rows, SIMD_TILE_VECTORS,
                  (__m256i *)tile + part * 8 * SIMD_TILE_VECTORS + vector);
    }
}

SIMD_INLINE __m256i simd_word(const void *bytes) {
    int32_t word;
    memcpy(&word, bytes, sizeof word);
    return _mm256_set1_epi32(word);
}

/* The sums of a group, of codes 0 to 15: products of 32 columns are added in 16 bits. */
SIMD_INLINE void simd_tile_small(const void *tile, const int8_t *const *inputs, int group,
                                 simd_wide sums[][SIMD_TILE_VECTORS]) {
    const __m256i *weights = tile;
    __m256i wide[SIMD_TILE_INPUTS][SIMD_TILE_VECTORS] = {0};
    for (int begin = 0; begin < group / 4; begin += 8) {
        __m256i pairs[SIMD_TILE_INPUTS][SIMD_TILE_VECTORS] = {0};
#pragma GCC unroll 8
        for (int word = begin; word < begin + 8; word++) {
            __m256i first = _mm256_load_si256(weights + 2 * word);
            __m256i second = _mm256_load_si256(weights + 2 * word + 1);
#pragma GCC unroll 4
            for (int i = 0; i < SIMD_TILE_INPUTS; i++) {
                __m256i columns = simd_word(inputs[i] + 4 * word);
                pairs[i][0] = _mm256_add_epi16(pairs[i][0], _mm256_maddubs_epi16(first, columns));
                pairs[i][1] = _mm256_add_epi16(pairs[i][1], _mm256_maddubs_epi16(second, columns));
            }
        }
        for (int i = 0; i < SIMD_TILE_INPUTS; i++)
            for (int vector = 0; vector < SIMD_TILE_VECTORS; vector++) {
                __m256i added = _mm256_madd_epi16(pairs[i][vector], _mm256_set1_epi16(1));
                wide[i][vector] = _mm256_add_epi32(wide[i][vector], added);
            }
    }
    for (int i = 0; i < SIMD_TILE_INPUTS; i++)
        for (int vector = 0; vector < SIMD_TILE_VECTORS; vector++)
            sums[i][vector] = (simd_wide)_mm256_cvtepi32_ps(wide[i][vector]);
}

SIMD_INLINE void simd_tile_signed(const void *tile, const simd_prepared *const *inputs, int group,
                                  simd_wide sums[][SIMD_TILE_VECTORS]) {
    const __m256i *weights = tile;
    __m256i wide[SIMD_TILE_INPUTS][SIMD_TILE_VECTORS] = {0};
    for (int word = 0; word < group / 2; word++) {
        __m256i first = _mm256_load_si256(weights + 2 * word);
        __m256i second = _mm256_load_si256(weights + 2 * word + 1);
#pragma GCC unroll 4
        for (int i = 0; i < SIMD_TILE_INPUTS; i++) {
            __m256i columns = simd_word(inputs[i] + 2 * word);
            wide[i][0] = _mm256_add_epi32(wide[i][0], _mm256_madd_epi16(first, columns));
            wide[i][1] = _mm256_add_epi32(wide[i][1], _mm256_madd_epi16(second, columns));
        }
    }
    for (int i = 0; i < SIMD_TILE_INPUTS; i++)
        for (int vector = 0; vector < SIMD_TILE_VECTORS; vector++)
            sums[i][vector] = (simd_wide)_mm256_cvtepi32_ps(wide[i][vector]);
}
