/* What AVX-512 and AVX2 with VNNI share: four bytes are multiplied, unsigned by signed, into 32 bits,
 * 256 bits at a time. SIMD_DPBUSD is what the instruction is called where this is included. */
/* Of codes 0 to 15. */
SIMD_INLINE simd_lanes simd_dot_small(struct simd_codes codes, const int8_t *activations,
                                      int group) {
    const __m256i *columns = (const __m256i *)activations;
    __m256i sums = _mm256_setzero_si256();
    for (int i = 0; i < group / 32; i++)
        sums = SIMD_DPBUSD(sums, codes.part[i], _mm256_load_si256(columns + i));
    return sums;
}

/* Of codes -128 to 127, whose sign moves to the activation. */
SIMD_INLINE simd_lanes simd_dot_signed(struct simd_codes codes, const int8_t *activations,
                                       int group) {
    const __m256i *columns = (const __m256i *)activations;
    __m256i sums = _mm256_setzero_si256();
    for (int i = 0; i < group / 32; i++) {
        __m256i turned = _mm256_sign_epi8(_mm256_load_si256(columns + i), codes.part[i]);
        sums = SIMD_DPBUSD(sums, _mm256_abs_epi8(codes.part[i]), turned);
    }
    return sums;
}

/* Of codes -127 to 127, which take the activation's sign: what eight rows share is its size. */
SIMD_INLINE simd_lanes simd_dot_even(struct simd_codes codes, const int8_t *activations,
                                     int group) {
    const __m256i *columns = (const __m256i *)activations;
    __m256i sums = _mm256_setzero_si256();
    for (int i = 0; i < group / 32; i++) {
        __m256i column = _mm256_load_si256(columns + i);
        __m256i turned = _mm256_sign_epi8(codes.part[i], column);
        sums = SIMD_DPBUSD(sums, _mm256_abs_epi8(column), turned);
    }
    return sums;
}

/* Of 32 codes -127 to 127, whose last 16 have a sum of their own. */
SIMD_INLINE simd_half_lanes simd_dot_halves(struct simd_codes codes, const int8_t *activations,
                                            int is_single) {
    return is_single ? simd_dot_even(codes, activations, 32)
                     : simd_dot_signed(codes, activations, 32);
}

SIMD_INLINE simd_lanes simd_dot_pair(struct simd_pair codes, struct simd_pair columns) {
    __m256i sums = _mm256_setzero_si256();
    for (int i = 0; i < 2; i++) {
        __m256i turned = _mm256_sign_epi8(codes.part[i], columns.part[i]);
        sums = SIMD_DPBUSD(sums, _mm256_abs_epi8(columns.part[i]), turned);
    }
    return sums;
}

SIMD_INLINE void simd_sum_pairs(const simd_lanes *rows, simd_floats *sums) {
    simd_sum_halves(rows, sums);
}

SIMD_INLINE simd_floats simd_sum_small_rows(const simd_lanes *rows) {
    return simd_sum_rows(rows);
}
