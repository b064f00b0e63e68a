/* Products of int8 activations for many rows, a prompt's: a tile of weights is turned once and
 * multiplied with all of them.
 *
 * Sums of a group are exact and groups are added in the order of `cpu_codes.c`, so both have the
 * same bits.
 */
#include "cpu.h"

#ifdef SIMD_TILE_INPUTS

#define CHUNK 128              /* columns of a tile, whole groups; with their inputs in first cache */
#define MOST_GROUPS (CHUNK / 32)
#define PASS_ROWS 512          /* rows of activations whose totals are kept over the chunks */
#define STRIP_ROWS (SIMD_TILE_VECTORS * SIMD_TILE_WIDTH)
#define NUM_STRIPS (ZSE_TILE_ROWS / STRIP_ROWS)

struct tile {
    _Alignas(64) char weights[CHUNK * ZSE_TILE_ROWS * 2 + MOST_GROUPS * ZSE_TILE_ROWS * 4];
    _Alignas(64) float scales[MOST_GROUPS][ZSE_TILE_ROWS];
    _Alignas(64) float zeros[MOST_GROUPS][ZSE_TILE_ROWS];
    _Alignas(64) simd_prepared prepared[SIMD_TILE_INPUTS][CHUNK];
    _Alignas(64) float totals[PASS_ROWS][ZSE_TILE_ROWS];
    const struct zse_matrix *matrix;
    const struct zse_quantized *input;
    int64_t first;             /* row of the weights */
    int64_t first_group;       /* of the chunk */
    int64_t num_groups;
    int64_t first_input;       /* row of the activations, of this pass */
    int64_t num_inputs;
};
_Static_assert(sizeof(struct tile) <= ZSE_SCRATCH_BYTES, "a tile lies in a worker's scratch");

SIMD_INLINE char *strip_weights(struct tile *tile, int64_t group_index, int strip, int scheme,
                                int group) {
    const int64_t bytes = simd_strip_bytes(scheme == ZSE_INT4, group);
    return tile->weights + (group_index * NUM_STRIPS + strip) * bytes;
}

/* One row's group; zeros follow the last column of an int8 row. */
SIMD_INLINE struct simd_codes load_group(const struct tile *tile, int64_t row, int64_t index,
                                         int scheme, int group) {
    const struct zse_matrix *matrix = tile->matrix;
    const int64_t place = zse_block_row(matrix, tile->first, row) * matrix->columns + index * group;
    const uint8_t *bytes = (const uint8_t *)matrix->data + zse_count_bytes(scheme, place);
    uint8_t padded[ZSE_ACTIVATION_GROUP] = {0};
    int64_t rest = matrix->columns - index * group;
    if (scheme == ZSE_INT8 && rest < group)
        bytes = memcpy(padded, bytes, (size_t)rest);
    return zse_load_codes(bytes, scheme, group);
}

SIMD_INLINE void pack_weights(struct tile *tile, int scheme, int group) {
    for (int64_t i = 0; i < tile->num_groups; i++) {
        for (int vector = 0; vector < ZSE_TILE_ROWS / SIMD_TILE_WIDTH; vector++) {
            struct simd_codes codes[SIMD_TILE_WIDTH];
            for (int row = 0; row < SIMD_TILE_WIDTH; row++)
                codes[row] = load_group(tile, vector * SIMD_TILE_WIDTH + row,
                                        tile->first_group + i, scheme, group);
            char *strip = strip_weights(tile, i, vector / SIMD_TILE_VECTORS, scheme, group);
            if (scheme == ZSE_INT4)
                simd_pack_small(codes, vector % SIMD_TILE_VECTORS, group, strip);
            else
                simd_pack_signed(codes, vector % SIMD_TILE_VECTORS, group, strip);
        }
    }
}

/* Put the scales of a group side by side; those of int8 rows multiply totals in the end. */
static void pack_scales(struct tile *tile, int64_t i) {
    const struct zse_matrix *matrix = tile->matrix;
    int64_t stride = matrix->columns / matrix->group;
    const uint16_t *scales = matrix->scales;
    uint16_t halves[2 * ZSE_TILE_ROWS];
    uint8_t exponents[ZSE_TILE_ROWS];
    for (int64_t row = 0; row < ZSE_TILE_ROWS; row++) {
        int64_t place =
            zse_block_row(matrix, tile->first, row) * stride + tile->first_group + i;
        if (matrix->scheme == ZSE_INT4)
            memcpy(halves + 2 * row, scales + 2 * place, 2 * sizeof *halves);
        else if (matrix->scheme == ZSE_MXFP4)
            exponents[row] = ((const uint8_t *)matrix->scales)[place];
        else
            halves[row] = scales[place];
    }
    for (int row = 0; row < ZSE_TILE_ROWS; row += SIMD_ROWS) {
        simd_floats scale, zero = {0};
        if (matrix->scheme == ZSE_INT4)
            simd_widen_pairs(halves + 2 * row, &scale, &zero);
        else if (matrix->scheme == ZSE_MXFP4)
            scale = zse_widen_exponents(exponents + row);
        else
            scale = simd_widen_fp16(halves + row);
        simd_store(tile->scales[i] + row, scale);
        simd_store(tile->zeros[i] + row, zero);
    }
}

/* Rows of activations that are multiplied together; the last one again where there are no more. */
struct inputs {
    const int8_t *codes[SIMD_TILE_INPUTS];
    const simd_prepared *prepared[SIMD_TILE_INPUTS];
    const float *scales[SIMD_TILE_INPUTS];
    const float *sums[SIMD_TILE_INPUTS];
    simd_wide *totals[SIMD_TILE_INPUTS];
};

SIMD_INLINE struct inputs find_inputs(struct tile *tile, int64_t begin, int scheme, int group) {
    const struct zse_quantized *input = tile->input;
    struct inputs inputs;
    for (int64_t i = 0; i < SIMD_TILE_INPUTS; i++) {
        int64_t own = zse_smaller(begin + i, tile->num_inputs - 1);
        int64_t row = tile->first_input + own;
        int64_t place = row * (input->stride / 32) + tile->first_group;
        inputs.codes[i] = input->codes + row * input->stride + tile->first_group * group;
        inputs.prepared[i] = tile->prepared[i];
        inputs.scales[i] = input->scales + place;
        inputs.sums[i] = input->sums + place;
        inputs.totals[i] = (simd_wide *)tile->totals[own];
        if (scheme != ZSE_INT4)
            simd_prepare(inputs.codes[i], tile->num_groups * group, tile->prepared[i]);
    }
    return inputs;
}

/* Multiply a strip's chunk with some inputs and add to their totals. */
SIMD_INLINE void add_strip(struct tile *tile, const struct inputs *inputs, int strip, int scheme,
                           int group) {
    simd_wide totals[SIMD_TILE_INPUTS][SIMD_TILE_VECTORS];
    for (int i = 0; i < SIMD_TILE_INPUTS; i++)
        memcpy(totals[i], inputs->totals[i] + strip * SIMD_TILE_VECTORS, sizeof totals[i]);
    for (int64_t index = 0; index < tile->num_groups; index++) {
        const char *weights = strip_weights(tile, index, strip, scheme, group);
        const simd_wide *scales = (const simd_wide *)tile->scales[index] + strip * SIMD_TILE_VECTORS;
        const simd_wide *zeros = (const simd_wide *)tile->zeros[index] + strip * SIMD_TILE_VECTORS;
        simd_wide sums[SIMD_TILE_INPUTS][SIMD_TILE_VECTORS];
        const int8_t *codes[SIMD_TILE_INPUTS];
        const simd_prepared *prepared[SIMD_TILE_INPUTS];
        for (int i = 0; i < SIMD_TILE_INPUTS; i++) {
            codes[i] = inputs->codes[i] + index * group;
            prepared[i] = inputs->prepared[i] + index * group;
        }
        if (scheme == ZSE_INT4)
            simd_tile_small(weights, codes, group, sums);
        else
            simd_tile_signed(weights, prepared, group, sums);
        for (int i = 0; i < SIMD_TILE_INPUTS; i++) {
            simd_wide scale = (simd_wide){} + inputs->scales[i][index];
            simd_wide sum = (simd_wide){} + inputs->sums[i][index];
            for (int vector = 0; vector < SIMD_TILE_VECTORS; vector++) {
                simd_wide *total = &totals[i][vector];
                simd_wide factor = scheme == ZSE_INT8 ? scale : scales[vector] * scale;
                *total = simd_wide_fused(sums[i][vector], factor, *total);
                if (scheme == ZSE_INT4)
                    *total = simd_wide_fused(zeros[vector], sum, *total);
            }
        }
    }
    for (int i = 0; i < SIMD_TILE_INPUTS; i++)
        memcpy(inputs->totals[i] + strip * SIMD_TILE_VECTORS, totals[i], sizeof totals[i]);
}

SIMD_INLINE void add_chunk(struct tile *tile, int scheme, int group) {
    pack_weights(tile, scheme, group);
    for (int64_t i = 0; scheme != ZSE_INT8 && i < tile->num_groups; i++)
        pack_scales(tile, i);
    for (int64_t begin = 0; begin < tile->num_inputs; begin += SIMD_TILE_INPUTS) {
        struct inputs inputs = find_inputs(tile, begin, scheme, group);
        for (int strip = 0; strip < NUM_STRIPS; strip++)
            add_strip(tile, &inputs, strip, scheme, group);
    }
}

SIMD_INLINE void add_scheme(struct tile *tile, int scheme, int group) {
    if (group == 128)
        add_chunk(tile, scheme, 128);
    else if (group == 64)
        add_chunk(tile, scheme, 64);
    else
        add_chunk(tile, scheme, 32);
}

static void add_any_chunk(struct tile *tile, int group) {
    if (tile->matrix->scheme == ZSE_INT4)
        add_scheme(tile, ZSE_INT4, group);
    else if (tile->matrix->scheme == ZSE_NF4)
        add_scheme(tile, ZSE_NF4, group);
    else if (tile->matrix->scheme == ZSE_MXFP4)
        add_chunk(tile, ZSE_MXFP4, 32);
    else
        add_scheme(tile, ZSE_INT8, group);
}

static void finish_pass(const struct zse_product *product, const struct tile *tile) {
    int64_t end = zse_smaller(ZSE_TILE_ROWS, tile->matrix->rows - tile->first);
    for (int64_t column = 0; column < end; column += SIMD_ROWS) {
        simd_floats factors = zse_column_factors(tile->matrix, tile->first + column);
        for (int64_t row = 0; row < tile->num_inputs; row++)
            zse_finish(product, tile->first_input + row, tile->first + column,
                       simd_load(tile->totals[row] + column) * factors);
    }
}

static void multiply_tile(const struct zse_product *product, struct tile *tile) {
    int group = product->group;
    int64_t num_groups = (tile->matrix->columns + group - 1) / group;
    for (int64_t begin = 0; begin < product->num_rows; begin += PASS_ROWS) {
        tile->first_input = begin;
        tile->num_inputs = zse_smaller(PASS_ROWS, product->num_rows - begin);
        memset(tile->totals, 0, (size_t)tile->num_inputs * sizeof tile->totals[0]);
        for (int64_t index = 0; index < num_groups; index += CHUNK / group) {
            tile->first_group = index;
            tile->num_groups = zse_smaller(CHUNK / group, num_groups - index);
            add_any_chunk(tile, group);
        }
        finish_pass(product, tile);
    }
}

void zse_multiply_tiles(const struct zse_product *product, int64_t first, int64_t count,
                        struct zse_worker *worker) {
    struct tile *tile = worker->scratch;
    tile->matrix = product->matrix;
    tile->input = &product->quantized;
    for (tile->first = first; tile->first < first + count; tile->first += ZSE_TILE_ROWS)
        multiply_tile(product, tile);
}

#endif
