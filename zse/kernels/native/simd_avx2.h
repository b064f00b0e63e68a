/* AVX2: bytes are multiplied in pairs, unsigned by signed, into 16 bits. */
#include <immintrin.h>

struct simd_codes {
    __m256i part[4];
};
typedef __m256i simd_lanes;

SIMD_INLINE simd_floats simd_fused(simd_floats left, simd_floats right, simd_floats added) {
    return (simd_floats)_mm256_fmadd_ps((__m256)left, (__m256)right, (__m256)added);
}

SIMD_INLINE simd_floats simd_widen_fp16(const void *numbers) {
    return (simd_floats)_mm256_cvtph_ps(_mm_loadu_si128(numbers));
}

/* Eight pairs of fp16 as their first and their second numbers. */
SIMD_INLINE void simd_widen_pairs(const void *pairs, simd_floats *first, simd_floats *second) {
    const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0,
                                           1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    __m256i sorted = _mm256_shuffle_epi8(_mm256_loadu_si256(pairs), order);
    sorted = _mm256_permute4x64_epi64(sorted, _MM_SHUFFLE(3, 1, 2, 0));
    *first = (simd_floats)_mm256_cvtph_ps(_mm256_castsi256_si128(sorted));
    *second = (simd_floats)_mm256_cvtph_ps(_mm256_extracti128_si256(sorted, 1));
}

SIMD_INLINE struct simd_codes simd_load_int8(const void *bytes, int group) {
    struct simd_codes codes = {0};
    for (int i = 0; i < group / 32; i++)
        codes.part[i] = _mm256_loadu_si256((const __m256i *)bytes + i);
    return codes;
}

/* The first half of a group lies in low nibbles, the second in high ones. */
SIMD_INLINE struct simd_codes simd_unpack_int4(const void *packed, int group) {
    const __m256i nibble = _mm256_set1_epi8(15);
    struct simd_codes codes = {0};
    if (group == 32) {
        __m128i bytes = _mm_loadu_si128(packed);
        __m256i both = _mm256_set_m128i(_mm_srli_epi16(bytes, 4), bytes);
        codes.part[0] = _mm256_and_si256(both, nibble);
        return codes;
    }
    for (int i = 0; i < group / 64; i++) {
        __m256i bytes = _mm256_loadu_si256((const __m256i *)packed + i);
        codes.part[i] = _mm256_and_si256(bytes, nibble);
        codes.part[group / 64 + i] = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble);
    }
    return codes;
}

/* `table` has the sixteen values of codes. */
SIMD_INLINE struct simd_codes simd_look_up(struct simd_codes codes, const int8_t *table,
                                           int group) {
    __m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
    for (int i = 0; i < group / 32; i++)
        codes.part[i] = _mm256_shuffle_epi8(values, codes.part[i]);
    return codes;
}

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

SIMD_INLINE simd_floats simd_sum_rows(const simd_lanes *rows) {
    __m256i first = _mm256_hadd_epi32(_mm256_hadd_epi32(rows[0], rows[1]),
                                      _mm256_hadd_epi32(rows[2], rows[3]));
    __m256i last = _mm256_hadd_epi32(_mm256_hadd_epi32(rows[4], rows[5]),
                                     _mm256_hadd_epi32(rows[6], rows[7]));
    __m256i sums = _mm256_add_epi32(_mm256_permute2x128_si256(first, last, 0x20),
                                    _mm256_permute2x128_si256(first, last, 0x31));
    return (simd_floats)_mm256_cvtepi32_ps(sums);
}

/* The sum of each row's lanes. */
SIMD_INLINE simd_floats simd_sum_lanes(const simd_floats *rows) {
    const __m256 *lanes = (const __m256 *)rows;
    __m256 first = _mm256_hadd_ps(_mm256_hadd_ps(lanes[0], lanes[1]),
                                  _mm256_hadd_ps(lanes[2], lanes[3]));
    __m256 last = _mm256_hadd_ps(_mm256_hadd_ps(lanes[4], lanes[5]),
                                 _mm256_hadd_ps(lanes[6], lanes[7]));
    return (simd_floats)_mm256_add_ps(_mm256_permute2f128_ps(first, last, 0x20),
                                      _mm256_permute2f128_ps(first, last, 0x31));
}

/* Tiles: weights of sixteen rows turned so that a vector has the same columns of eight rows, which
 * are multiplied with the columns of four rows of activations at a time. */
#define SIMD_TILE_INPUTS 4
#define SIMD_TILE_VECTORS 2
#define SIMD_TILE_WIDTH 8
typedef simd_floats simd_wide;
/* What activations of signed codes are prepared as: 16 bits, as two products fill 16 bits. */
typedef int16_t simd_prepared;

SIMD_INLINE simd_wide simd_wide_fused(simd_wide left, simd_wide right, simd_wide added) {
    return simd_fused(left, right, added);
}

SIMD_INLINE void simd_prepare(const int8_t *codes, int64_t count, simd_prepared *output) {
    for (int64_t i = 0; i < count; i += 16) {
        __m128i narrow = _mm_loadu_si128((const __m128i *)(codes + i));
        _mm256_store_si256((__m256i *)(output + i), _mm256_cvtepi8_epi16(narrow));
    }
}

/* Eight rows of eight 32-bit words: word i of all rows goes to tile[i * SIMD_TILE_VECTORS]. */
SIMD_INLINE void simd_turn(const __m256i *rows, __m256i *tile) {
    __m256i pairs[8], fours[8];
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = _mm256_unpacklo_epi32(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        for (int half = 0; half < 2; half++) {
            fours[i + 2 * half] = _mm256_unpacklo_epi64(pairs[i + half], pairs[i + half + 2]);
            fours[i + 2 * half + 1] = _mm256_unpackhi_epi64(pairs[i + half], pairs[i + half + 2]);
        }
    }
    for (int i = 0; i < 4; i++) {
        __m256i low = _mm256_permute2x128_si256(fours[i], fours[i + 4], 0x20);
        __m256i high = _mm256_permute2x128_si256(fours[i], fours[i + 4], 0x31);
        _mm256_store_si256(tile + i * SIMD_TILE_VECTORS, low);
        _mm256_store_si256(tile + (i + 4) * SIMD_TILE_VECTORS, high);
    }
}

/* Put a group of eight rows into a tile as its vector number `vector`. */
SIMD_INLINE void simd_pack_small(const struct simd_codes *codes, int vector, int group,
                                 void *tile) {
    for (int part = 0; part < group / 32; part++) {
        __m256i rows[8];
        for (int row = 0; row < 8; row++)
            rows[row] = codes[row].part[part];
        simd_turn(rows, (__m256i *)tile + part * 8 * SIMD_TILE_VECTORS + vector);
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
        simd_turn(rows, (__m256i *)tile + part * 8 * SIMD_TILE_VECTORS + vector);
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
