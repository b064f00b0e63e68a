/* AVX2, with VNNI where a processor has it: sums of decoding are then of four bytes at once. */
#include "simd_x86.h"

#ifdef __AVXVNNI__
#define SIMD_DPBUSD _mm256_dpbusd_avx_epi32
#include "simd_vnni.h"
#else
#include "simd_pairs.h"
#endif

/* Tiles: weights of 32 rows turned so that a vector has the same columns of eight rows, which are
 * multiplied with the columns of two rows of activations at a time: their sums fill eight registers
 * of sixteen. */
#define SIMD_TILE_INPUTS 2
#define SIMD_TILE_VECTORS 4
#define SIMD_TILE_WIDTH 8
typedef simd_floats simd_wide;
/* What activations of signed codes are prepared as: 16 bits, as two products fill 16 bits. */
typedef int16_t simd_prepared;

/* Bytes of 32 rows' group in a tile. */
SIMD_INLINE int64_t simd_strip_bytes(int is_small, int group) {
    return (int64_t)group * SIMD_TILE_VECTORS * SIMD_TILE_WIDTH * (is_small ? 1 : 2);
}

SIMD_INLINE simd_wide simd_wide_all(float number) {
    return simd_all(number);
}

SIMD_INLINE simd_wide simd_wide_fused(simd_wide left, simd_wide right, simd_wide added) {
    return simd_fused(left, right, added);
}

/* Two columns are multiplied at a time: of four, the even and the odd ones. */
SIMD_INLINE __m256i simd_even_bytes(__m256i bytes) {
    return _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8);
}

SIMD_INLINE __m256i simd_odd_bytes(__m256i bytes) {
    return _mm256_srai_epi16(bytes, 8);
}

SIMD_INLINE void simd_prepare(const int8_t *codes, int64_t count, simd_prepared *output) {
    for (int64_t i = 0; i < count; i += 32) {
        __m256i bytes = _mm256_load_si256((const __m256i *)(codes + i));
        _mm256_store_si256((__m256i *)(output + i), simd_even_bytes(bytes));
        _mm256_store_si256((__m256i *)(output + i) + 1, simd_odd_bytes(bytes));
    }
}

/* The same where 16 columns have sums of their own. */
SIMD_INLINE void simd_prepare_halves(const int8_t *codes, int64_t count, simd_prepared *output) {
    for (int64_t i = 0; i < count; i += 16) {
        __m128i bytes = _mm_load_si128((const __m128i *)(codes + i));
        __m128i even = _mm_srai_epi16(_mm_slli_epi16(bytes, 8), 8);
        _mm_store_si128((__m128i *)(output + i), even);
        _mm_store_si128((__m128i *)(output + i) + 1, _mm_srai_epi16(bytes, 8));
    }
}

/* Put a group of eight rows, where they lie, into a tile as its vector number `vector`. */
SIMD_INLINE void simd_pack_int4(const uint8_t *const *rows, int vector, int group, void *tile) {
    __m256i *output = (__m256i *)tile + vector;
#pragma GCC unroll 4
    for (int word = 0; word < group / 8; word += 4) {
        __m256i words[4];
        simd_turn_rows(rows, 4 * word, words);
        for (int i = 0; i < 4; i++) {
            output[(word + i) * SIMD_TILE_VECTORS] = simd_low_nibbles(words[i]);
            output[(group / 8 + word + i) * SIMD_TILE_VECTORS] = simd_high_nibbles(words[i]);
        }
    }
}

/* Put four columns of signed codes into a tile as two vectors of 16 bits, some words apart. */
SIMD_INLINE void simd_put_apart(__m256i codes, int words, __m256i *output) {
    output[0] = simd_even_bytes(codes);
    output[words * SIMD_TILE_VECTORS] = simd_odd_bytes(codes);
}

SIMD_INLINE void simd_put_signed(__m256i codes, __m256i *output) {
    simd_put_apart(codes, 8, output);
}

/* Where word `word` of a group, four columns, lies in a tile of signed codes. */
SIMD_INLINE __m256i *simd_signed_place(void *tile, int vector, int word) {
    return (__m256i *)tile + (word / 8 * 16 + word % 8) * SIMD_TILE_VECTORS + vector;
}

/* Of the same bytes where codes stand for the values of a table. */
SIMD_INLINE void simd_pack_table(const uint8_t *const *rows, const int8_t *table, int vector,
                                 int group, void *tile) {
    __m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
#pragma GCC unroll 4
    for (int word = 0; word < group / 8; word += 4) {
        __m256i words[4];
        simd_turn_rows(rows, 4 * word, words);
        for (int i = 0; i < 4; i++) {
            __m256i low = _mm256_shuffle_epi8(values, simd_low_nibbles(words[i]));
            __m256i high = _mm256_shuffle_epi8(values, simd_high_nibbles(words[i]));
            simd_put_signed(low, simd_signed_place(tile, vector, word + i));
            simd_put_signed(high, simd_signed_place(tile, vector, group / 8 + word + i));
        }
    }
}

/* The same for 32 columns as two tiles of 16: of the low nibbles, then of the high ones. */
SIMD_INLINE void simd_pack_halves(const uint8_t *const *rows, const int8_t *table, int vector,
                                  void *tile) {
    __m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
    __m256i *low = (__m256i *)tile + vector;
    __m256i *high = (__m256i *)((char *)tile + simd_strip_bytes(0, 16)) + vector;
    __m256i words[4];
    simd_turn_rows(rows, 0, words);
    for (int i = 0; i < 4; i++) {
        simd_put_apart(_mm256_shuffle_epi8(values, simd_low_nibbles(words[i])), 4,
                       low + i * SIMD_TILE_VECTORS);
        simd_put_apart(_mm256_shuffle_epi8(values, simd_high_nibbles(words[i])), 4,
                       high + i * SIMD_TILE_VECTORS);
    }
}

SIMD_INLINE void simd_pack_int8(const uint8_t *const *rows, int vector, int group, void *tile) {
#pragma GCC unroll 8
    for (int word = 0; word < group / 4; word += 4) {
        __m256i words[4];
        simd_turn_rows(rows, 4 * word, words);
        for (int i = 0; i < 4; i++)
            simd_put_signed(words[i], simd_signed_place(tile, vector, word + i));
    }
}

SIMD_INLINE __m256i simd_word(const void *bytes) {
    int32_t word;
    memcpy(&word, bytes, sizeof word);
    return _mm256_set1_epi32(word);
}

/* A compiler that reorders products and sums keeps more than there are registers. */
#define SIMD_KEEP_ORDER(vector) __asm__ volatile("" : "+x"(vector))

/* Multiply two vectors of weights with two words of activations, and add in lanes of 16 bits for
 * codes 0 to 15, else of 32: products first, since they and sums want the same ports. */
SIMD_INLINE void simd_add_products(const __m256i *weights, const __m256i *words, int is_small,
                                   __m256i sums[][SIMD_TILE_VECTORS], int vector) {
    __m256i products[2][2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        __m256i own = _mm256_load_si256(weights + i);
#pragma GCC unroll 2
        for (int input = 0; input < 2; input++) {
            products[input][i] = is_small ? _mm256_maddubs_epi16(own, words[input])
                                          : _mm256_madd_epi16(own, words[input]);
            SIMD_KEEP_ORDER(products[input][i]);
        }
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
#pragma GCC unroll 2
        for (int input = 0; input < 2; input++) {
            __m256i *sum = &sums[input][vector + i];
            *sum = is_small ? _mm256_add_epi16(*sum, products[input][i])
                            : _mm256_add_epi32(*sum, products[input][i]);
            SIMD_KEEP_ORDER(*sum);
        }
    }
}

SIMD_INLINE void simd_widen_sums(__m256i wide[][SIMD_TILE_VECTORS],
                                 simd_wide sums[][SIMD_TILE_VECTORS]) {
    for (int i = 0; i < SIMD_TILE_INPUTS; i++)
        for (int vector = 0; vector < SIMD_TILE_VECTORS; vector++)
            sums[i][vector] = (simd_wide)_mm256_cvtepi32_ps(wide[i][vector]);
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
            const __m256i words[] = {simd_word(inputs[0] + 4 * word),
                                     simd_word(inputs[1] + 4 * word)};
#pragma GCC unroll 2
            for (int vector = 0; vector < SIMD_TILE_VECTORS; vector += 2)
                simd_add_products(weights + word * SIMD_TILE_VECTORS + vector, words, 1, pairs,
                                  vector);
        }
        for (int i = 0; i < SIMD_TILE_INPUTS; i++)
            for (int vector = 0; vector < SIMD_TILE_VECTORS; vector++) {
                __m256i added = _mm256_madd_epi16(pairs[i][vector], _mm256_set1_epi16(1));
                wide[i][vector] = _mm256_add_epi32(wide[i][vector], added);
            }
    }
    simd_widen_sums(wide, sums);
}

SIMD_INLINE void simd_tile_signed(const void *tile, const simd_prepared *const *inputs, int group,
                                  simd_wide sums[][SIMD_TILE_VECTORS]) {
    const __m256i *weights = tile;
    __m256i wide[SIMD_TILE_INPUTS][SIMD_TILE_VECTORS] = {0};
#pragma GCC unroll 2
    for (int word = 0; word < group / 2; word++) {
        const __m256i words[] = {simd_word(inputs[0] + 2 * word), simd_word(inputs[1] + 2 * word)};
#pragma GCC unroll 2
        for (int vector = 0; vector < SIMD_TILE_VECTORS; vector += 2)
            simd_add_products(weights + word * SIMD_TILE_VECTORS + vector, words, 0, wide, vector);
    }
    simd_widen_sums(wide, sums);
}
