/* Products of AVX2 without VNNI: bytes are multiplied in pairs, unsigned by signed, into 16 bits. */
/* Of codes 0 to 15, in 16 bits: 8 * 15 * 127 of 128 columns leave room for as much again. */
SIMD_INLINE simd_lanes simd_dot_small(struct simd_codes codes, const int8_t *activations,
                                      int group) {
    const __m256i *columns = (const __m256i *)activations;
    __m256i pairs = _mm256_maddubs_epi16(codes.part[0], _mm256_load_si256(columns));
    for (int i = 1; i < group / 32; i++) {
        __m256i products = _mm256_maddubs_epi16(codes.part[i], _mm256_load_si256(columns + i));
        pairs = _mm256_add_epi16(pairs, products);
    }
    return pairs;
}

/* Two rows' sums of 16 bits as half as many of 32, in turns. */
SIMD_INLINE __m256i simd_join_small(__m256i first, __m256i second) {
    __m256i both = _mm256_add_epi16(_mm256_unpacklo_epi32(first, second),
                                    _mm256_unpackhi_epi32(first, second));
    return _mm256_madd_epi16(both, _mm256_set1_epi16(1));
}

SIMD_INLINE simd_floats simd_sum_small_rows(const simd_lanes *rows) {
    __m256i pairs[4];
    for (int i = 0; i < 4; i++)
        pairs[i] = simd_join_small(rows[2 * i], rows[2 * i + 1]);
    return simd_join_halves(simd_join_pairs(pairs[0], pairs[1]),
                            simd_join_pairs(pairs[2], pairs[3]));
}

/* Of codes -127 to 127, which take the activation's sign: what eight rows share is its size. */
SIMD_INLINE simd_lanes simd_dot_even(struct simd_codes codes, const int8_t *activations,
                                     int group) {
    const __m256i *columns = (const __m256i *)activations;
    __m256i sums = _mm256_setzero_si256();
    for (int i = 0; i < group / 32; i++) {
        __m256i column = _mm256_load_si256(columns + i);
        __m256i turned = _mm256_sign_epi8(codes.part[i], column);
        __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(column), turned);
        sums = _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    return sums;
}

/* Of codes -32 to 32, in 16 bits: 4 * 32 * 127 leave room for as much again. */
SIMD_INLINE simd_lanes simd_dot_pair(struct simd_pair codes, struct simd_pair columns) {
    __m256i pairs = _mm256_setzero_si256();
    for (int i = 0; i < 2; i++) {
        __m256i turned = _mm256_sign_epi8(codes.part[i], columns.part[i]);
        __m256i products = _mm256_maddubs_epi16(_mm256_abs_epi8(columns.part[i]), turned);
        pairs = _mm256_add_epi16(pairs, products);
    }
    return pairs;
}

SIMD_INLINE void simd_sum_pairs(const simd_lanes *rows, simd_floats *sums) {
    __m256i pairs[4];
    for (int i = 0; i < 4; i++)
        pairs[i] = simd_join_small(rows[2 * i], rows[2 * i + 1]);
    simd_part_halves(simd_join_pairs(pairs[0], pairs[1]), simd_join_pairs(pairs[2], pairs[3]),
                     sums);
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

/* Of 32 codes -127 to 127, whose last 16 have a sum of their own. */
SIMD_INLINE simd_half_lanes simd_dot_halves(struct simd_codes codes, const int8_t *activations,
                                            int is_single) {
    return is_single ? simd_dot_even(codes, activations, 32)
                     : simd_dot_signed(codes, activations, 32);
}
