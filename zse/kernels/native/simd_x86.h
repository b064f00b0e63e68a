/* What AVX2 and AVX-512 share: 256 bits at a time, as decoding waits for memory with either. */
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

/* Two rows side by side, one in each pair of 64 bits, from four of which each half has two. */
SIMD_INLINE __m256i simd_join_pairs(__m256i first, __m256i second) {
    return _mm256_add_epi32(_mm256_unpacklo_epi64(first, second),
                            _mm256_unpackhi_epi64(first, second));
}

SIMD_INLINE simd_floats simd_join_halves(__m256i first, __m256i last) {
    __m256i sums = _mm256_add_epi32(_mm256_permute2x128_si256(first, last, 0x20),
                                    _mm256_permute2x128_si256(first, last, 0x31));
    return (simd_floats)_mm256_cvtepi32_ps(sums);
}

SIMD_INLINE simd_floats simd_sum_rows(const simd_lanes *rows) {
    __m256i pairs[4];
    for (int i = 0; i < 4; i++)
        pairs[i] = _mm256_add_epi32(_mm256_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]),
                                    _mm256_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]));
    return simd_join_halves(simd_join_pairs(pairs[0], pairs[1]),
                            simd_join_pairs(pairs[2], pairs[3]));
}

/* Eight rows' sums of two parts, from those of four rows with a part in each half. */
SIMD_INLINE void simd_part_halves(__m256i first, __m256i last, simd_floats *sums) {
    sums[0] = (simd_floats)_mm256_cvtepi32_ps(_mm256_permute2x128_si256(first, last, 0x20));
    sums[1] = (simd_floats)_mm256_cvtepi32_ps(_mm256_permute2x128_si256(first, last, 0x31));
}

/* Products of 32 columns: those of the first 16 lie in one half. */
typedef __m256i simd_half_lanes;

SIMD_INLINE void simd_sum_halves(const simd_half_lanes *rows, simd_floats *sums) {
    __m256i pairs[4];
    for (int i = 0; i < 4; i++)
        pairs[i] = _mm256_add_epi32(_mm256_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]),
                                    _mm256_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]));
    simd_part_halves(simd_join_pairs(pairs[0], pairs[1]), simd_join_pairs(pairs[2], pairs[3]),
                     sums);
}

/* Two groups of 32 columns at once, a half of a vector each: half of the work of unpacking them one
 * by one, and of summing their lanes. */
#define SIMD_PAIRS
struct simd_pair {
    __m256i part[2]; /* the first 16 columns of both groups, the last 16 */
};

SIMD_INLINE struct simd_pair simd_unpack_pair(const void *packed, const int8_t *table) {
    const __m256i nibble = _mm256_set1_epi8(15);
    __m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
    __m256i bytes = _mm256_loadu_si256(packed);
    __m256i low = _mm256_and_si256(bytes, nibble);
    __m256i high = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble);
    return (struct simd_pair){{_mm256_shuffle_epi8(values, low), _mm256_shuffle_epi8(values, high)}};
}

SIMD_INLINE struct simd_pair simd_load_pair(const int8_t *activations) {
    const __m256i *columns = (const __m256i *)activations;
    __m256i first = _mm256_load_si256(columns), second = _mm256_load_si256(columns + 1);
    return (struct simd_pair){{_mm256_permute2x128_si256(first, second, 0x20),
                               _mm256_permute2x128_si256(first, second, 0x31)}};
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

/* Sixteen bytes of each of eight rows, turned: four bytes of all rows in each of four vectors. */
#define SIMD_TURNS_ROWS
SIMD_INLINE void simd_turn_rows(const uint8_t *const *rows, int64_t first, __m256i *words) {
    __m256i both[4], pairs[4];
    for (int row = 0; row < 4; row++) {
        __m128i low = _mm_loadu_si128((const __m128i *)(rows[row] + first));
        __m128i high = _mm_loadu_si128((const __m128i *)(rows[row + 4] + first));
        both[row] = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    }
    for (int i = 0; i < 4; i += 2) {
        pairs[i] = _mm256_unpacklo_epi32(both[i], both[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_epi32(both[i], both[i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        words[2 * i] = _mm256_unpacklo_epi64(pairs[i], pairs[i + 2]);
        words[2 * i + 1] = _mm256_unpackhi_epi64(pairs[i], pairs[i + 2]);
    }
}

/* The same bytes as eight vectors of two bytes of all rows. */
SIMD_INLINE void simd_turn_halves(const uint8_t *const *rows, int64_t first, __m256i *pairs) {
    const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0,
                                           1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    __m256i words[4];
    simd_turn_rows(rows, first, words);
    for (int i = 0; i < 4; i++) {
        __m256i sorted = _mm256_shuffle_epi8(words[i], order);
        _mm256_storeu_si256(pairs + i, _mm256_permute4x64_epi64(sorted, _MM_SHUFFLE(3, 1, 2, 0)));
    }
}

SIMD_INLINE __m256i simd_low_nibbles(__m256i bytes) {
    return _mm256_and_si256(bytes, _mm256_set1_epi8(15));
}

SIMD_INLINE __m256i simd_high_nibbles(__m256i bytes) {
    return simd_low_nibbles(_mm256_srli_epi16(bytes, 4));
}
