/* No instructions of its own: what a compiler makes of loops. */

struct simd_codes {
    int8_t code[128];
};
typedef int32_t simd_lanes;

SIMD_INLINE simd_floats simd_fused(simd_floats left, simd_floats right, simd_floats added) {
    return left * right + added;
}

SIMD_INLINE float simd_half(uint16_t bits) {
    _Float16 number;
    memcpy(&number, &bits, sizeof number);
    return (float)number;
}

SIMD_INLINE simd_floats simd_widen_fp16(const void *numbers) {
    simd_halves halves;
    memcpy(&halves, numbers, sizeof halves);
    simd_floats wide;
    for (int i = 0; i < SIMD_ROWS; i++)
        wide[i] = simd_half(halves[i]);
    return wide;
}

/* Eight pairs of fp16 as their first and their second numbers. */
SIMD_INLINE void simd_widen_pairs(const void *pairs, simd_floats *first, simd_floats *second) {
    uint16_t halves[2 * SIMD_ROWS];
    memcpy(halves, pairs, sizeof halves);
    for (int i = 0; i < SIMD_ROWS; i++) {
        (*first)[i] = simd_half(halves[2 * i]);
        (*second)[i] = simd_half(halves[2 * i + 1]);
    }
}

SIMD_INLINE struct simd_codes simd_load_int8(const void *bytes, int group) {
    struct simd_codes codes;
    memcpy(codes.code, bytes, (size_t)group);
    return codes;
}

/* The first half of a group lies in low nibbles, the second in high ones. */
SIMD_INLINE struct simd_codes simd_unpack_int4(const void *packed, int group) {
    const uint8_t *bytes = packed;
    struct simd_codes codes;
    for (int i = 0; i < group / 2; i++) {
        codes.code[i] = bytes[i] & 15;
        codes.code[group / 2 + i] = bytes[i] >> 4;
    }
    return codes;
}

/* `table` has the sixteen values of codes. */
SIMD_INLINE struct simd_codes simd_look_up(struct simd_codes codes, const int8_t *table,
                                           int group) {
    for (int i = 0; i < group; i++)
        codes.code[i] = table[codes.code[i]];
    return codes;
}

SIMD_INLINE simd_lanes simd_dot_signed(struct simd_codes codes, const int8_t *activations,
                                       int group) {
    int32_t sum = 0;
    for (int i = 0; i < group; i++)
        sum += (int16_t)codes.code[i] * (int16_t)activations[i];
    return sum;
}

/* Of codes 0 to 15. */
SIMD_INLINE simd_lanes simd_dot_small(struct simd_codes codes, const int8_t *activations,
                                      int group) {
    return simd_dot_signed(codes, activations, group);
}

SIMD_INLINE simd_floats simd_sum_rows(const simd_lanes *rows) {
    simd_integers sums;
    for (int i = 0; i < SIMD_ROWS; i++)
        sums[i] = rows[i];
    return __builtin_convertvector(sums, simd_floats);
}

/* Of codes -127 to 127. */
SIMD_INLINE simd_lanes simd_dot_even(struct simd_codes codes, const int8_t *activations,
                                     int group) {
    return simd_dot_signed(codes, activations, group);
}

/* Products of 32 columns: of the first 16 and of the last. */
typedef struct {
    int32_t sum[2];
} simd_half_lanes;

/* Of 32 codes, whose last 16 have a sum of their own. */
SIMD_INLINE simd_half_lanes simd_dot_halves(struct simd_codes codes, const int8_t *activations,
                                            int is_single) {
    simd_half_lanes lanes = {{0}};
    (void)is_single;
    for (int i = 0; i < 32; i++)
        lanes.sum[i / 16] += (int16_t)codes.code[i] * (int16_t)activations[i];
    return lanes;
}

SIMD_INLINE void simd_sum_halves(const simd_half_lanes *rows, simd_floats *sums) {
    for (int i = 0; i < SIMD_ROWS; i++) {
        sums[0][i] = (float)rows[i].sum[0];
        sums[1][i] = (float)rows[i].sum[1];
    }
}

SIMD_INLINE simd_floats simd_sum_small_rows(const simd_lanes *rows) {
    return simd_sum_rows(rows);
}

/* The sum of each row's lanes. */
SIMD_INLINE simd_floats simd_sum_lanes(const simd_floats *rows) {
    simd_floats sums;
    for (int row = 0; row < SIMD_ROWS; row++) {
        sums[row] = 0;
        for (int i = 0; i < SIMD_ROWS; i++)
            sums[row] += rows[row][i];
    }
    return sums;
}
