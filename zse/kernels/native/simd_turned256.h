/* Turned weights of AVX2 with VNNI: eight rows, 16 bytes of each at once. */
#define SIMD_TURNED_ROWS 8
#define SIMD_TURNED_BYTES 16
/* Rows of activations that are multiplied at once with two vectors: their sums fill half of the
 * registers. */
#define SIMD_TURNED_INPUTS 4
/* This is the best for many rows, too, however wide: tiles multiply without VNNI. */
#define SIMD_TURNED_COLUMNS (1 << 20)

typedef int32_t simd_turned __attribute__((vector_size(32)));
typedef float simd_turned_floats __attribute__((vector_size(32)));

/* What a table has for codes 0 to 15. */
SIMD_INLINE simd_turned simd_turned_look_up(const int8_t *table, simd_turned codes) {
    __m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
    return (simd_turned)_mm256_shuffle_epi8(values, (__m256i)codes);
}

/* Add products of four columns, unsigned bytes by signed ones. */
SIMD_INLINE simd_turned simd_turned_dot(simd_turned sums, simd_turned bytes, simd_turned columns) {
    return (simd_turned)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)bytes, (__m256i)columns);
}

/* The sum of 128 or 64 columns. */
SIMD_INLINE int32_t simd_turned_total(const int8_t *activations, int count) {
    __m256i ones = _mm256_set1_epi8(1), sums = _mm256_setzero_si256();
    for (int i = 0; i < count; i += 32)
        sums = _mm256_dpbusd_avx_epi32(sums, ones,
                                       _mm256_loadu_si256((const __m256i *)(activations + i)));
    simd_integers lanes = (simd_integers)sums;
    int32_t total = 0;
    for (int i = 0; i < SIMD_ROWS; i++)
        total += lanes[i];
    return total;
}

SIMD_INLINE simd_turned_floats simd_turned_fused(simd_turned_floats left, simd_turned_floats right,
                                                 simd_turned_floats added) {
    return simd_fused(left, right, added);
}

SIMD_INLINE simd_turned_floats simd_turned_join(const simd_floats *parts) {
    return parts[0];
}

SIMD_INLINE void simd_turn(const uint8_t *const *rows, int64_t first, simd_turned *words) {
    simd_turn_rows(rows, first, (__m256i *)words);
}
