/* Products of int8 activations: exact sums of whole numbers in a group, float32 across groups.
 *
 * Eight rows of weights are walked side by side, a group at a time, so that the sums of a group
 * lie in one vector and are scaled together. Across groups each row adds in one order, whatever is
 * computed beside it: a product has the same bits in any batch.
 */
#include "cpu.h"
#include "scales.h"

/* Rows of activations that share one pass over the weights. */
#define PASS_ROWS 8

const int8_t zse_nf4_codes[16] = {-112, -78, -59, -44, -32, -21, -10, 0,
                                  9,    18,  28,  38,  49,  63,  81,  112};
const int8_t zse_mxfp4_codes[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
const int8_t zse_nl4_codes[16] = {-127, -102, -81, -63, -48, -33, -20, -8,
                                  0,    12,   24,  38,  53,  70,  90,  125};

/* Eight rows of weights from some group on, and what they are multiplied by. */
struct block {
    const uint8_t *rows[SIMD_ROWS];
    const uint8_t *next;       /* the eight rows behind, which may lie outside the matrix */
    const char *scales;        /* of eight rows for each group: INT4: pairs of fp16, NF4: fp16,
                                  MXFP4: exponents, NL4: bytes, NL4_PAIRS: two; scratch */
    const struct zse_quantized *input;
    int64_t first_input;       /* row of the activations */
    int64_t num_inputs;
    int64_t first_group;
    int64_t num_groups;
};

/* For one row of activations, what is found of them once serves all rows of weights. */
SIMD_INLINE simd_lanes dot_group(struct simd_codes codes, const int8_t *activations, int scheme,
                                 int group, int is_single) {
    if (zse_has_zeros(scheme))
        return simd_dot_small(codes, activations, group);
    if (scheme != ZSE_INT8 && is_single)
        return simd_dot_even(codes, activations, group);
    return simd_dot_signed(codes, activations, group);
}

/* Add a group's product to the totals of a row of activations. */
SIMD_INLINE void add_group(const struct block *block, int64_t index, int64_t input,
                           simd_floats sums, const struct zse_factors *factors, int scheme,
                           simd_floats *total) {
    const struct zse_quantized *quantized = block->input;
    int64_t place = (block->first_input + input) * (quantized->stride / 32) + index;
    zse_add_group(total, sums, factors, quantized->scales[place], quantized->sums[place], scheme);
}

/* Add the block's groups to totals [num_inputs]. All but the block is constant where inlined. */
SIMD_INLINE void add_groups(const struct block *block, int scheme, int group, int64_t num_inputs,
                            int is_single, simd_floats *totals) {
    const int64_t bytes = zse_count_bytes(scheme, group);
    const int8_t *inputs = block->input->codes + block->first_input * block->input->stride;
    for (int64_t i = 0; i < block->num_groups; i++) {
        int64_t index = block->first_group + i;
        struct zse_factors factors =
            zse_load_factors(block->scales + index * zse_scale_bytes(scheme) * SIMD_ROWS, scheme);
        simd_lanes lanes[PASS_ROWS][SIMD_ROWS];
        for (int row = 0; row < SIMD_ROWS; row++) {
            zse_prefetch(block->next + (i * SIMD_ROWS + row) * bytes, bytes);
            struct simd_codes codes = zse_load_codes(block->rows[row] + i * bytes, scheme, group);
            for (int64_t input = 0; input < num_inputs; input++)
                lanes[input][row] =
                    dot_group(codes, inputs + input * block->input->stride + index * group,
                              scheme, group, is_single);
        }
        for (int64_t input = 0; input < num_inputs; input++) {
            simd_floats sums = zse_has_zeros(scheme) ? simd_sum_small_rows(lanes[input])
                                                     : simd_sum_rows(lanes[input]);
            add_group(block, index, input, sums, &factors, scheme, &totals[input]);
        }
    }
}

/* The same for NL4_PAIRS, whose columns 16 to 31 have a scale of their own. */
SIMD_INLINE void add_halves(const struct block *block, int64_t num_inputs, int is_single,
                            simd_floats *totals) {
    const int64_t bytes = 32 / 2;
    const int8_t *inputs = block->input->codes + block->first_input * block->input->stride;
    for (int64_t i = 0; i < block->num_groups; i++) {
        int64_t index = block->first_group + i;
        struct zse_factors factors =
            zse_load_factors(block->scales + index * 2 * SIMD_ROWS, ZSE_NL4_PAIRS);
        simd_half_lanes lanes[PASS_ROWS][SIMD_ROWS];
        for (int row = 0; row < SIMD_ROWS; row++) {
            zse_prefetch(block->next + (i * SIMD_ROWS + row) * bytes, bytes);
            struct simd_codes codes =
                zse_load_codes(block->rows[row] + i * bytes, ZSE_NL4_PAIRS, 32);
            for (int64_t input = 0; input < num_inputs; input++)
                lanes[input][row] = simd_dot_halves(
                    codes, inputs + input * block->input->stride + index * 32, is_single);
        }
        for (int64_t input = 0; input < num_inputs; input++) {
            simd_floats sums[2];
            simd_sum_halves(lanes[input], sums);
            sums[0] = simd_fused(sums[1], factors.zeros, sums[0] * factors.scales);
            add_group(block, index, input, sums[0], &factors, ZSE_NL4_PAIRS, &totals[input]);
        }
    }
}

#ifdef SIMD_PAIRS
/* The same for MXFP4, two groups at a time; the last one alone where their number is odd. */
SIMD_INLINE void add_pairs(const struct block *block, int64_t num_inputs, int is_single,
                           simd_floats *totals) {
    const int64_t bytes = 32 / 2;
    const int8_t *inputs = block->input->codes + block->first_input * block->input->stride;
    int64_t i = 0;
    for (; i + 2 <= block->num_groups; i += 2) {
        int64_t index = block->first_group + i;
        struct zse_factors factors[2];
        for (int group = 0; group < 2; group++)
            factors[group] =
                zse_load_factors(block->scales + (index + group) * SIMD_ROWS, ZSE_MXFP4);
        simd_lanes lanes[PASS_ROWS][SIMD_ROWS];
        for (int row = 0; row < SIMD_ROWS; row++) {
            zse_prefetch(block->next + (i * SIMD_ROWS + 2 * row) * bytes, 2 * bytes);
            struct simd_pair codes = simd_unpack_pair(block->rows[row] + i * bytes, zse_mxfp4_codes);
            for (int64_t input = 0; input < num_inputs; input++) {
                const int8_t *activations = inputs + input * block->input->stride + index * 32;
                lanes[input][row] = simd_dot_pair(codes, simd_load_pair(activations));
            }
        }
        for (int64_t input = 0; input < num_inputs; input++) {
            simd_floats sums[2];
            simd_sum_pairs(lanes[input], sums);
            for (int group = 0; group < 2; group++)
                add_group(block, index + group, input, sums[group], &factors[group], ZSE_MXFP4,
                          &totals[input]);
        }
    }
    struct block last = *block;
    for (int row = 0; row < SIMD_ROWS; row++)
        last.rows[row] += i * bytes;
    last.next += i * SIMD_ROWS * bytes;
    last.first_group += i;
    last.num_groups -= i;
    add_groups(&last, ZSE_MXFP4, 32, num_inputs, is_single, totals);
}
#endif

#ifdef SIMD_SPAN
/* The same for a span of columns at a time, of which groups are a whole or a half; a last half
 * alone. */
SIMD_INLINE void add_spans(const struct block *whole, int scheme, int group, int64_t num_inputs,
                           int is_single, simd_floats *all) {
    struct block block = *whole; /* stores of totals change nothing of it */
    const int64_t bytes = zse_count_bytes(scheme, SIMD_SPAN), size = zse_scale_bytes(scheme);
    const int8_t *inputs = block.input->codes + block.first_input * block.input->stride;
    const int64_t stride = block.input->stride;
    simd_floats totals[PASS_ROWS];
    memcpy(totals, all, (size_t)num_inputs * sizeof *totals);
    for (; block.num_groups >= SIMD_SPAN / group; block.num_groups -= SIMD_SPAN / group) {
        struct simd_span_columns columns[PASS_ROWS];
        simd_span_lanes lanes[PASS_ROWS][SIMD_ROWS];
        for (int64_t input = 0; input < num_inputs; input++)
            columns[input] = simd_span_columns(inputs + input * stride + block.first_group * group,
                                               !zse_has_zeros(scheme), group);
        for (int row = 0; row < SIMD_ROWS; row++) {
            zse_prefetch(block.next, bytes);
            block.next += bytes;
            uint32_t wide[SIMD_SPAN / 8];
            const uint8_t *packed = block.rows[row];
            if (scheme == ZSE_INT3 || scheme == ZSE_INT2)
                packed = zse_widen_codes(packed, scheme, SIMD_SPAN, wide);
            struct simd_span codes =
                simd_load_span(packed, scheme == ZSE_INT8,
                               scheme == ZSE_NF4 ? zse_nf4_codes : NULL);
            block.rows[row] += bytes;
            for (int64_t input = 0; input < num_inputs; input++)
                lanes[input][row] = simd_span_dot(codes, &columns[input]);
        }
        struct zse_factors factors[2];
        for (int half = 0; half < SIMD_SPAN / group; half++)
            factors[half] = zse_load_factors(
                block.scales + (block.first_group + half) * size * SIMD_ROWS, scheme);
        for (int64_t input = 0; input < num_inputs; input++) {
            simd_floats sums[2];
            simd_span_sums(lanes[input], group, sums);
            for (int half = 0; half < SIMD_SPAN / group; half++)
                add_group(&block, block.first_group + half, input, sums[half], &factors[half],
                          scheme, &totals[input]);
        }
        block.first_group += SIMD_SPAN / group;
    }
    memcpy(all, totals, (size_t)num_inputs * sizeof *totals);
    if (block.num_groups)
        add_groups(&block, scheme, group, num_inputs, is_single, all);
}
#endif

SIMD_INLINE void add_all(const struct block *block, int scheme, int group, int64_t num_inputs,
                         int is_single, simd_floats *totals) {
#ifdef SIMD_SPAN
    if (group == SIMD_SPAN || (group == SIMD_SPAN / 2 && scheme != ZSE_INT8)) {
        add_spans(block, scheme, group, num_inputs, is_single, totals);
        return;
    }
#endif
    if (scheme == ZSE_NL4_PAIRS) {
        add_halves(block, num_inputs, is_single, totals);
        return;
    }
#ifdef SIMD_PAIRS
    if (scheme == ZSE_MXFP4) {
        add_pairs(block, num_inputs, is_single, totals);
        return;
    }
#endif
    add_groups(block, scheme, group, num_inputs, is_single, totals);
}

/* Loops over usual numbers of rows are unrolled. */
SIMD_INLINE void add_groups_of(const struct block *block, int scheme, int group,
                               simd_floats *totals) {
    if (block->num_inputs == 1)
        add_all(block, scheme, group, 1, 1, totals);
#ifdef SIMD_SPAN
    else if (block->num_inputs == 2)
        add_all(block, scheme, group, 2, 0, totals);
#endif
    else if (block->num_inputs == 4)
        add_all(block, scheme, group, 4, 0, totals);
    else if (block->num_inputs == PASS_ROWS)
        add_all(block, scheme, group, PASS_ROWS, 0, totals);
    else
        add_all(block, scheme, group, block->num_inputs, 0, totals);
}

SIMD_INLINE void add_scheme(const struct block *block, int scheme, int group,
                            simd_floats *totals) {
    if (group == 128)
        add_groups_of(block, scheme, 128, totals);
    else if (group == 64)
        add_groups_of(block, scheme, 64, totals);
    else
        add_groups_of(block, scheme, 32, totals);
}

/* INT3 and INT2 have groups of 64 and 32. */
SIMD_INLINE void add_few_bits(const struct block *block, int scheme, int group,
                              simd_floats *totals) {
    if (group == 64)
        add_groups_of(block, scheme, 64, totals);
    else
        add_groups_of(block, scheme, 32, totals);
}

static void add_block(const struct block *block, int scheme, int group, simd_floats *totals) {
    if (scheme == ZSE_INT4)
        add_scheme(block, ZSE_INT4, group, totals);
    else if (scheme == ZSE_INT3)
        add_few_bits(block, ZSE_INT3, group, totals);
    else if (scheme == ZSE_INT2)
        add_few_bits(block, ZSE_INT2, group, totals);
    else if (scheme == ZSE_NF4)
        add_scheme(block, ZSE_NF4, group, totals);
    else if (scheme == ZSE_MXFP4)
        add_groups_of(block, ZSE_MXFP4, 32, totals);
    else if (scheme == ZSE_NL4)
        add_groups_of(block, ZSE_NL4, 32, totals);
    else if (scheme == ZSE_NL4_PAIRS)
        add_groups_of(block, ZSE_NL4_PAIRS, 32, totals);
    else
        add_scheme(block, ZSE_INT8, group, totals);
}

/* Add the columns of int8 rows that fill no group: from a copy, as nothing lies behind a row. */
static void add_tail(const struct zse_matrix *matrix, struct block block, int64_t first, int group,
                     simd_floats *totals) {
    uint8_t tails[SIMD_ROWS][ZSE_ACTIVATION_GROUP] = {0};
    int64_t begin = matrix->columns / group * group;
    for (int64_t row = 0; row < SIMD_ROWS; row++) {
        const uint8_t *own = (const uint8_t *)matrix->data +
                             zse_block_row(matrix, first, row) * matrix->columns;
        memcpy(tails[row], own + begin, (size_t)(matrix->columns - begin));
        block.rows[row] = tails[row];
    }
    block.first_group = begin / group;
    block.num_groups = 1;
    add_block(&block, matrix->scheme, group, totals);
}

/* Ask for what a block ends with, its sums' places, and for what the next one begins with. */
static void prefetch_ends(const struct zse_product *product, int64_t first) {
    const struct zse_matrix *matrix = product->matrix;
    int64_t scale_bytes = zse_count_scale_bytes(matrix, SIMD_ROWS);
    for (int64_t row = 0; row < product->num_rows; row++)
        __builtin_prefetch(product->output + row * matrix->rows + first, 1, 3);
    zse_prefetch((const char *)matrix->scales + zse_count_scale_bytes(matrix, first) + scale_bytes,
                 scale_bytes);
}

/* Rows of activations of the next pass. Loops over other numbers than these would keep sums in
 * memory; so some rows take two or three passes over weights that lie in caches. */
static int64_t pass_rows(int64_t left) {
#ifdef SIMD_SPAN
    if (left < PASS_ROWS)
        return left >= 4 ? 4 : left >= 2 ? 2 : 1;
#endif
    return zse_smaller(PASS_ROWS, left);
}

static void multiply_block(const struct zse_product *product, int64_t first, char *scales) {
    const struct zse_matrix *matrix = product->matrix;
    int64_t num_rows = product->num_rows;
    int group = product->group;
    int64_t bytes = zse_count_bytes(matrix->scheme, matrix->columns);
    struct block block = {.scales = scales,
                          .input = &product->quantized,
                          .num_groups = matrix->columns / group};
    for (int64_t row = 0; row < SIMD_ROWS; row++)
        block.rows[row] =
            (const uint8_t *)matrix->data + zse_block_row(matrix, first, row) * bytes;
    block.next = block.rows[0] + SIMD_ROWS * bytes;
    prefetch_ends(product, first);
    zse_gather_scales(matrix, first, scales);
    simd_floats factors = zse_column_factors(matrix, first);
    for (int64_t begin = 0; begin < num_rows; begin += block.num_inputs) {
        simd_floats totals[PASS_ROWS] = {0};
        block.first_input = begin;
        block.num_inputs = pass_rows(num_rows - begin);
        add_block(&block, matrix->scheme, group, totals);
        if (matrix->columns % group)
            add_tail(matrix, block, first, group, totals);
        for (int64_t row = 0; row < block.num_inputs; row++)
            zse_finish(product, begin + row, first, totals[row] * factors);
    }
}

void zse_multiply_codes(const struct zse_product *product, int64_t first, int64_t count,
                        struct zse_worker *worker) {
    for (int64_t row = first; row < first + count; row += SIMD_ROWS)
        multiply_block(product, row, worker->scratch);
}
