/* Turned weights of AVX-512 with VNNI: sixteen rows, 32 bytes of each at once. */
#define SIMD_TURNED_ROWS 16
#define SIMD_TURNED_BYTES 32
/* Rows of activations that are multiplied at once with two vectors: their sums fill half of the
 * registers. */
#define SIMD_TURNED_INPUTS 8
/* Columns up to which this is the best for many rows, too: beyond, tiles read a few columns of all. */
#define SIMD_TURNED_COLUMNS 2048

typedef int32_t simd_turned __attribute__((vector_size(64)));
typedef float simd_turned_floats __attribute__((vector_size(64)));

/* What a table has for codes 0 to 15. */
SIMD_INLINE simd_turned simd_turned_look_up(const int8_t *table, simd_turned codes) {
    __m128i values = _mm_loadu_si128((const __m128i *)table);
    return (simd_turned)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), (__m512i)codes);
}

/* Add products of four columns, unsigned bytes by signed ones. */
SIMD_INLINE simd_turned simd_turned_dot(simd_turned sums, simd_turned bytes, simd_turned columns) {
    return (simd_turned)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)bytes, (__m512i)columns);
}

/* The sum of 128 or 64 columns. */
SIMD_INLINE int32_t simd_turned_total(const int8_t *activations, int count) {
    __m512i ones = _mm512_set1_epi8(1), sums = _mm512_setzero_si512();
    for (int i = 0; i < count; i += 64)
        sums = _mm512_dpbusd_epi32(sums, ones, _mm512_loadu_si512(activations + i));
    return _mm512_reduce_add_epi32(sums);
}

SIMD_INLINE simd_turned_floats simd_turned_fused(simd_turned_floats left, simd_turned_floats right,
                                                 simd_turned_floats added) {
    return (simd_turned_floats)_mm512_fmadd_ps((__m512)left, (__m512)right, (__m512)added);
}

/* What two halves of the rows have, from where they lie. */
SIMD_INLINE simd_turned_floats simd_turned_join(const simd_floats *parts) {
    return __builtin_shufflevector(parts[0], parts[1], 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13,
                                   14, 15);
}

/* 32 bytes of each of sixteen rows, from `first` on. */
SIMD_INLINE void simd_turn(const uint8_t *const *rows, int64_t first, simd_turned *output) {
    /* Lanes 0 to 3 of what is loaded are of rows 0 to 3 and 8 to 11, and so on, so that the last
     * step puts them in order. */
    __m512i *words = (__m512i *)output;
    __m512i both[8], pairs[8];
    for (int i = 0; i < 8; i++) {
        const int row = i < 4 ? i : i + 4;
        __m256i low = _mm256_loadu_si256((const __m256i *)(rows[row] + first));
        __m256i high = _mm256_loadu_si256((const __m256i *)(rows[row + 4] + first));
        both[i] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    }
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = _mm512_unpacklo_epi32(both[i], both[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi32(both[i], both[i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        __m512i first_low = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
        __m512i first_high = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
        __m512i last_low = _mm512_unpacklo_epi64(pairs[i + 4], pairs[i + 6]);
        __m512i last_high = _mm512_unpackhi_epi64(pairs[i + 4], pairs[i + 6]);
        words[2 * i] = _mm512_shuffle_i64x2(first_low, last_low, _MM_SHUFFLE(2, 0, 2, 0));
        words[2 * i + 1] = _mm512_shuffle_i64x2(first_high, last_high, _MM_SHUFFLE(2, 0, 2, 0));
        words[2 * i + 4] = _mm512_shuffle_i64x2(first_low, last_low, _MM_SHUFFLE(3, 1, 3, 1));
        words[2 * i + 5] = _mm512_shuffle_i64x2(first_high, last_high, _MM_SHUFFLE(3, 1, 3, 1));
    }
}
