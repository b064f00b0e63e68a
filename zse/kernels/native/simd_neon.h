/* NEON: products of matrices of bytes (i8mm) or dot products of four bytes where the processor has
 * them, else products of 16 bits. */
#include <arm_neon.h>

struct simd_codes {
    int8x16_t part[8];
};
typedef int32x4_t simd_lanes;

union simd_split {
    simd_floats whole;
    float32x4_t half[2];
};

SIMD_INLINE simd_floats simd_join(float32x4_t low, float32x4_t high) {
    return (union simd_split){.half = {low, high}}.whole;
}

SIMD_INLINE simd_floats simd_fused(simd_floats left, simd_floats right, simd_floats added) {
    union simd_split a = {left}, b = {right}, c = {added};
    return simd_join(vfmaq_f32(c.half[0], a.half[0], b.half[0]),
                     vfmaq_f32(c.half[1], a.half[1], b.half[1]));
}

SIMD_INLINE simd_floats simd_widen_halves(uint16x8_t halves) {
    float16x8_t numbers = vreinterpretq_f16_u16(halves);
    return simd_join(vcvt_f32_f16(vget_low_f16(numbers)), vcvt_f32_f16(vget_high_f16(numbers)));
}

SIMD_INLINE simd_floats simd_widen_fp16(const void *numbers) {
    return simd_widen_halves(vld1q_u16(numbers));
}

/* Eight pairs of fp16 as their first and their second numbers. */
SIMD_INLINE void simd_widen_pairs(const void *pairs, simd_floats *first, simd_floats *second) {
    uint16x8x2_t sorted = vld2q_u16(pairs);
    *first = simd_widen_halves(sorted.val[0]);
    *second = simd_widen_halves(sorted.val[1]);
}

SIMD_INLINE struct simd_codes simd_load_int8(const void *bytes, int group) {
    struct simd_codes codes = {0};
    for (int i = 0; i < group / 16; i++)
        codes.part[i] = vld1q_s8((const int8_t *)bytes + 16 * i);
    return codes;
}

/* The first half of a group lies in low nibbles, the second in high ones. */
SIMD_INLINE struct simd_codes simd_unpack_int4(const void *packed, int group) {
    struct simd_codes codes = {0};
    for (int i = 0; i < group / 32; i++) {
        uint8x16_t bytes = vld1q_u8((const uint8_t *)packed + 16 * i);
        codes.part[i] = vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(15)));
        codes.part[group / 32 + i] = vreinterpretq_s8_u8(vshrq_n_u8(bytes, 4));
    }
    return codes;
}

/* `table` has the sixteen values of codes. */
SIMD_INLINE struct simd_codes simd_look_up(struct simd_codes codes, const int8_t *table,
                                           int group) {
    int8x16_t values = vld1q_s8(table);
    for (int i = 0; i < group / 16; i++)
        codes.part[i] = vqtbl1q_s8(values, vreinterpretq_u8_s8(codes.part[i]));
    return codes;
}

SIMD_INLINE simd_lanes simd_dot_signed(struct simd_codes codes, const int8_t *activations,
                                       int group) {
    int32x4_t sums = vdupq_n_s32(0);
    for (int i = 0; i < group / 16; i++) {
        int8x16_t columns = vld1q_s8(activations + 16 * i);
#ifdef __ARM_FEATURE_DOTPROD
        sums = vdotq_s32(sums, codes.part[i], columns);
#else
        /* Two products fit in 16 bits, 2 * 128 * 127. */
        int16x8_t pairs = vmull_s8(vget_low_s8(codes.part[i]), vget_low_s8(columns));
        pairs = vmlal_high_s8(pairs, codes.part[i], columns);
        sums = vpadalq_s16(sums, pairs);
#endif
    }
    return sums;
}

/* Of codes 0 to 15. */
SIMD_INLINE simd_lanes simd_dot_small(struct simd_codes codes, const int8_t *activations,
                                      int group) {
    return simd_dot_signed(codes, activations, group);
}

SIMD_INLINE simd_floats simd_sum_rows(const simd_lanes *rows) {
    int32x4_t low = vpaddq_s32(vpaddq_s32(rows[0], rows[1]), vpaddq_s32(rows[2], rows[3]));
    int32x4_t high = vpaddq_s32(vpaddq_s32(rows[4], rows[5]), vpaddq_s32(rows[6], rows[7]));
    return simd_join(vcvtq_f32_s32(low), vcvtq_f32_s32(high));
}

/* Of codes -127 to 127. */
SIMD_INLINE simd_lanes simd_dot_even(struct simd_codes codes, const int8_t *activations,
                                     int group) {
    return simd_dot_signed(codes, activations, group);
}

/* Products of 32 columns: those of the first 16, then those of the last. */
typedef int32x4_t simd_half_lanes;

/* Of 32 codes, whose last 16 have a sum of their own. */
SIMD_INLINE simd_half_lanes simd_dot_halves(struct simd_codes codes, const int8_t *activations,
                                            int is_single) {
    struct simd_codes last = {{codes.part[1]}};
    (void)is_single;
    return vpaddq_s32(simd_dot_signed(codes, activations, 16),
                      simd_dot_signed(last, activations + 16, 16));
}

SIMD_INLINE void simd_sum_halves(const simd_half_lanes *rows, simd_floats *sums) {
    int32x4_t pairs[4];
    for (int i = 0; i < 4; i++)
        pairs[i] = vpaddq_s32(rows[2 * i], rows[2 * i + 1]);
    sums[0] = simd_join(vcvtq_f32_s32(vuzp1q_s32(pairs[0], pairs[1])),
                        vcvtq_f32_s32(vuzp1q_s32(pairs[2], pairs[3])));
    sums[1] = simd_join(vcvtq_f32_s32(vuzp2q_s32(pairs[0], pairs[1])),
                        vcvtq_f32_s32(vuzp2q_s32(pairs[2], pairs[3])));
}

SIMD_INLINE simd_floats simd_sum_small_rows(const simd_lanes *rows) {
    return simd_sum_rows(rows);
}

/* The sum of each row's lanes. */
SIMD_INLINE simd_floats simd_sum_lanes(const simd_floats *rows) {
    float32x4_t folded[SIMD_ROWS];
    for (int row = 0; row < SIMD_ROWS; row++) {
        union simd_split split = {rows[row]};
        folded[row] = vaddq_f32(split.half[0], split.half[1]);
    }
    return simd_join(vpaddq_f32(vpaddq_f32(folded[0], folded[1]), vpaddq_f32(folded[2], folded[3])),
                     vpaddq_f32(vpaddq_f32(folded[4], folded[5]), vpaddq_f32(folded[6], folded[7])));
}

#ifdef __ARM_FEATURE_DOTPROD
/* Tiles: weights of eight rows laid out as they are multiplied with eight rows of activations at a
 * time: by dot products of four columns, or by products of matrices where the processor has them. */
#define SIMD_TILE_INPUTS 8
#define SIMD_TILE_VECTORS 1
#define SIMD_TILE_WIDTH 8
#ifdef __ARM_FEATURE_MATMUL_INT8
/* A tile of a few rows takes as long as one of eight, which is half as long as dot products take. */
#define SIMD_MOST_WITHOUT_TILES 4
#endif
typedef simd_floats simd_wide;
/* Activations of signed codes need no preparation; a copy lies closer together. */
typedef int8_t simd_prepared;

/* Bytes of eight rows' group in a tile. */
SIMD_INLINE int64_t simd_strip_bytes(int is_small, int group) {
    (void)is_small;
    return (int64_t)group * SIMD_TILE_WIDTH;
}

SIMD_INLINE simd_wide simd_wide_all(float number) {
    return simd_all(number);
}

SIMD_INLINE simd_wide simd_wide_fused(simd_wide left, simd_wide right, simd_wide added) {
    return simd_fused(left, right, added);
}

SIMD_INLINE void simd_prepare(const int8_t *codes, int64_t count, simd_prepared *output) {
    memcpy(output, codes, (size_t)count);
}

SIMD_INLINE void simd_prepare_halves(const int8_t *codes, int64_t count, simd_prepared *output) {
    simd_prepare(codes, count, output);
}

#ifdef __ARM_FEATURE_MATMUL_INT8
/* Rows are multiplied in pairs, eight columns of both at a time: a vector has these of two rows. */
SIMD_INLINE int8x16x2_t simd_pair_rows(int8x16_t first, int8x16_t second) {
    int64x2_t left = vreinterpretq_s64_s8(first), right = vreinterpretq_s64_s8(second);
    return (int8x16x2_t){{vreinterpretq_s8_s64(vzip1q_s64(left, right)),
                          vreinterpretq_s8_s64(vzip2q_s64(left, right))}};
}

SIMD_INLINE void simd_pack(const struct simd_codes *codes, int group, int8_t *tile) {
    for (int part = 0; part < group / 16; part++) {
        for (int pair = 0; pair < 4; pair++) {
            int8x16x2_t rows =
                simd_pair_rows(codes[2 * pair].part[part], codes[2 * pair + 1].part[part]);
            vst1q_s8(tile + 128 * part + 16 * pair, rows.val[0]);
            vst1q_s8(tile + 128 * part + 64 + 16 * pair, rows.val[1]);
        }
    }
}

/* Two rows of activations times two rows of weights are a vector: the first one's sums, then the
 * second one's. */
SIMD_INLINE void simd_tile_signed(const void *tile, const int8_t *const *inputs, int group,
                                  simd_wide sums[][SIMD_TILE_VECTORS]) {
    int32x4_t wide[SIMD_TILE_INPUTS / 2][4];
    for (int input = 0; input < SIMD_TILE_INPUTS / 2; input++)
        for (int pair = 0; pair < 4; pair++)
            wide[input][pair] = vdupq_n_s32(0);
    for (int column = 0; column < group; column += 16) {
        const int8_t *weights = (const int8_t *)tile + 8 * column;
        int8x16x4_t first = vld1q_s8_x4(weights), second = vld1q_s8_x4(weights + 64);
#pragma GCC unroll 4
        for (int input = 0; input < SIMD_TILE_INPUTS / 2; input++) {
            int8x16x2_t columns = simd_pair_rows(vld1q_s8(inputs[2 * input] + column),
                                                 vld1q_s8(inputs[2 * input + 1] + column));
#pragma GCC unroll 4
            for (int pair = 0; pair < 4; pair++) {
                int32x4_t *sum = &wide[input][pair];
                *sum = vmmlaq_s32(*sum, columns.val[0], first.val[pair]);
                *sum = vmmlaq_s32(*sum, columns.val[1], second.val[pair]);
            }
        }
    }
    for (int input = 0; input < SIMD_TILE_INPUTS / 2; input++) {
        int64x2_t pairs[4];
        for (int pair = 0; pair < 4; pair++)
            pairs[pair] = vreinterpretq_s64_s32(wide[input][pair]);
        int32x4_t low = vreinterpretq_s32_s64(vzip1q_s64(pairs[0], pairs[1]));
        int32x4_t high = vreinterpretq_s32_s64(vzip1q_s64(pairs[2], pairs[3]));
        sums[2 * input][0] = simd_join(vcvtq_f32_s32(low), vcvtq_f32_s32(high));
        low = vreinterpretq_s32_s64(vzip2q_s64(pairs[0], pairs[1]));
        high = vreinterpretq_s32_s64(vzip2q_s64(pairs[2], pairs[3]));
        sums[2 * input + 1][0] = simd_join(vcvtq_f32_s32(low), vcvtq_f32_s32(high));
    }
}
#else
/* A vector has four columns of four rows. */
SIMD_INLINE void simd_pack(const struct simd_codes *codes, int group, int8_t *tile) {
    for (int half = 0; half < 2; half++) {
        for (int part = 0; part < group / 16; part++) {
            int32x4x4_t rows;
            for (int row = 0; row < 4; row++)
                rows.val[row] = vreinterpretq_s32_s8(codes[4 * half + row].part[part]);
            vst4q_s32((int32_t *)tile + half * group + 16 * part, rows);
        }
    }
}

SIMD_INLINE void simd_tile_signed(const void *tile, const int8_t *const *inputs, int group,
                                  simd_wide sums[][SIMD_TILE_VECTORS]) {
    const int8_t *low = tile, *high = low + 4 * group;
    int32x4_t wide[SIMD_TILE_INPUTS][2];
    for (int i = 0; i < SIMD_TILE_INPUTS; i++)
        wide[i][0] = wide[i][1] = vdupq_n_s32(0);
    for (int column = 0; column < group; column += 16) {
        int8x16x4_t first = vld1q_s8_x4(low + 4 * column), second = vld1q_s8_x4(high + 4 * column);
#pragma GCC unroll 8
        for (int i = 0; i < SIMD_TILE_INPUTS; i++) {
            int8x16_t columns = vld1q_s8(inputs[i] + column);
            wide[i][0] = vdotq_laneq_s32(wide[i][0], first.val[0], columns, 0);
            wide[i][1] = vdotq_laneq_s32(wide[i][1], second.val[0], columns, 0);
            wide[i][0] = vdotq_laneq_s32(wide[i][0], first.val[1], columns, 1);
            wide[i][1] = vdotq_laneq_s32(wide[i][1], second.val[1], columns, 1);
            wide[i][0] = vdotq_laneq_s32(wide[i][0], first.val[2], columns, 2);
            wide[i][1] = vdotq_laneq_s32(wide[i][1], second.val[2], columns, 2);
            wide[i][0] = vdotq_laneq_s32(wide[i][0], first.val[3], columns, 3);
            wide[i][1] = vdotq_laneq_s32(wide[i][1], second.val[3], columns, 3);
        }
    }
    for (int i = 0; i < SIMD_TILE_INPUTS; i++)
        sums[i][0] = simd_join(vcvtq_f32_s32(wide[i][0]), vcvtq_f32_s32(wide[i][1]));
}
#endif

/* Put a group of eight rows, where they lie, into a tile. */
SIMD_INLINE void simd_pack_int4(const uint8_t *const *rows, int vector, int group, void *tile) {
    struct simd_codes codes[SIMD_TILE_WIDTH];
    (void)vector;
    for (int row = 0; row < SIMD_TILE_WIDTH; row++)
        codes[row] = simd_unpack_int4(rows[row], group);
    simd_pack(codes, group, tile);
}

/* Of the same bytes where codes stand for the values of a table. */
SIMD_INLINE void simd_pack_table(const uint8_t *const *rows, const int8_t *table, int vector,
                                 int group, void *tile) {
    struct simd_codes codes[SIMD_TILE_WIDTH];
    (void)vector;
    for (int row = 0; row < SIMD_TILE_WIDTH; row++)
        codes[row] = simd_look_up(simd_unpack_int4(rows[row], group), table, group);
    simd_pack(codes, group, tile);
}

/* The same for 32 columns as two tiles of 16: of the low nibbles, then of the high ones. */
SIMD_INLINE void simd_pack_halves(const uint8_t *const *rows, const int8_t *table, int vector,
                                  void *tile) {
    struct simd_codes low[SIMD_TILE_WIDTH], high[SIMD_TILE_WIDTH];
    (void)vector;
    for (int row = 0; row < SIMD_TILE_WIDTH; row++) {
        low[row] = simd_look_up(simd_unpack_int4(rows[row], 32), table, 32);
        high[row] = (struct simd_codes){{low[row].part[1]}};
    }
    simd_pack(low, 16, tile);
    simd_pack(high, 16, (int8_t *)tile + simd_strip_bytes(0, 16));
}

SIMD_INLINE void simd_pack_int8(const uint8_t *const *rows, int vector, int group, void *tile) {
    struct simd_codes codes[SIMD_TILE_WIDTH];
    (void)vector;
    for (int row = 0; row < SIMD_TILE_WIDTH; row++)
        codes[row] = simd_load_int8(rows[row], group);
    simd_pack(codes, group, tile);
}

SIMD_INLINE void simd_tile_small(const void *tile, const int8_t *const *inputs, int group,
                                 simd_wide sums[][SIMD_TILE_VECTORS]) {
    simd_tile_signed(tile, inputs, group, sums);
}
#endif
