/* Products of int8 activations for many rows, a prompt's: a tile of weights is turned once and
 * multiplied with all of them.
 *
 * Sums of a group are exact and groups are added in the order of `cpu_codes.c`, so both have the
 * same bits.
 */
#include "cpu.h"

#ifdef SIMD_TILE_INPUTS

#define CHUNK 128              /* columns of a tile, whole groups; in first cache with inputs */
#define MOST_GROUPS (CHUNK / 32)
#define PASS_ROWS 512          /* rows of activations whose totals are kept over the chunks */
#define MOST_STRIPS (ZSE_TILE_ROWS / ZSE_STRIP_ROWS)

struct tile {
    _Alignas(64) char weights[CHUNK * ZSE_TILE_ROWS * 2 + 2 * MOST_GROUPS * ZSE_TILE_ROWS * 4];
    _Alignas(64) float scales[MOST_GROUPS][ZSE_TILE_ROWS];
    _Alignas(64) float zeros[MOST_GROUPS][ZSE_TILE_ROWS];
    _Alignas(64) simd_prepared prepared[SIMD_TILE_INPUTS][CHUNK];
    _Alignas(64) float totals[PASS_ROWS + 1][ZSE_TILE_ROWS];
    uint8_t tails[ZSE_TILE_ROWS][ZSE_ACTIVATION_GROUP];
    const uint8_t *rows[ZSE_TILE_ROWS];
    const char *row_scales[ZSE_TILE_ROWS]; /* of groups */
    const struct zse_matrix *matrix;
    const struct zse_quantized *input;
    int64_t first;             /* row of the weights */
    int64_t num_strips;
    int64_t first_group;       /* of the chunk */
    int64_t num_groups;
    int64_t first_input;       /* row of the activations, of this pass */
    int64_t num_inputs;
};
_Static_assert(sizeof(struct tile) <= ZSE_SCRATCH_BYTES, "a tile lies in a worker's scratch");

SIMD_INLINE char *strip_weights(struct tile *tile, int64_t group_index, int64_t strip, int scheme,
                                int group) {
    const int64_t bytes = scheme == ZSE_NL4_PAIRS ? 2 * simd_strip_bytes(0, 16)
                                                  : simd_strip_bytes(zse_has_zeros(scheme), group);
    return tile->weights + (group_index * MOST_STRIPS + strip) * bytes;
}

/* Find a group of all rows: in a copy where zeros follow the last column of int8 rows. */
SIMD_INLINE void find_rows(struct tile *tile, int64_t index, int scheme, int group,
                           const uint8_t **rows) {
    int64_t rest = tile->matrix->columns - index * group;
    for (int64_t row = 0; row < tile->num_strips * ZSE_STRIP_ROWS; row++) {
        rows[row] = tile->rows[row] + index * zse_count_bytes(scheme, group);
        if (scheme == ZSE_INT8 && rest < group) {
            memset(tile->tails[row], 0, sizeof tile->tails[row]);
            rows[row] = memcpy(tile->tails[row], rows[row], (size_t)rest);
        }
    }
}

SIMD_INLINE void pack_few_bits(const uint8_t *const *rows, int vector, int scheme, int group,
                               char *strip) {
    uint32_t wide[SIMD_TILE_WIDTH][64 / 8];
    const uint8_t *packed[SIMD_TILE_WIDTH];
    for (int row = 0; row < SIMD_TILE_WIDTH; row++)
        packed[row] = zse_widen_codes(rows[row], scheme, group, wide[row]);
    simd_pack_int4(packed, vector, group, strip);
}

SIMD_INLINE void pack_weights(struct tile *tile, int scheme, int group) {
    const uint8_t *rows[ZSE_TILE_ROWS];
    for (int64_t i = 0; i < tile->num_groups; i++) {
        find_rows(tile, tile->first_group + i, scheme, group, rows);
        for (int64_t first = 0; first < tile->num_strips * ZSE_STRIP_ROWS;
             first += SIMD_TILE_WIDTH) {
            char *strip = strip_weights(tile, i, first / ZSE_STRIP_ROWS, scheme, group);
            int vector = first / SIMD_TILE_WIDTH % SIMD_TILE_VECTORS;
            if (scheme == ZSE_INT3 || scheme == ZSE_INT2)
                pack_few_bits(rows + first, vector, scheme, group, strip);
            else if (scheme == ZSE_INT4)
                simd_pack_int4(rows + first, vector, group, strip);
            else if (scheme == ZSE_INT8)
                simd_pack_int8(rows + first, vector, group, strip);
            else if (scheme == ZSE_NL4_PAIRS)
                simd_pack_halves(rows + first, zse_nl4_codes, vector, strip);
            else
                simd_pack_table(rows + first, zse_table_of(scheme), vector, group, strip);
        }
    }
}

/* Put the scales of a group side by side; those of int8 rows multiply totals in the end. */
SIMD_INLINE void pack_scales(struct tile *tile, int64_t i, int scheme) {
    const int64_t bytes = zse_scale_bytes(scheme);
    char scales[4 * ZSE_TILE_ROWS];
    int64_t num_rows = tile->num_strips * ZSE_STRIP_ROWS;
    int64_t place = (tile->first_group + i) * bytes;
    for (int64_t row = 0; row < num_rows; row++)
        memcpy(scales + row * bytes, tile->row_scales[row] + place, (size_t)bytes);
    for (int64_t row = 0; row < num_rows; row += SIMD_ROWS) {
        struct zse_factors factors = zse_load_factors(scales + row * bytes, scheme);
        simd_store(tile->scales[i] + row, factors.scales);
        simd_store(tile->zeros[i] + row, factors.zeros);
    }
}

/* Rows of activations that are multiplied together; where there are no more, the last one again,
 * whose totals go to a row that nobody reads. */
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
        inputs.totals[i] = (simd_wide *)tile->totals[own == begin + i ? own : PASS_ROWS];
        if (scheme == ZSE_NL4_PAIRS)
            simd_prepare_halves(inputs.codes[i], tile->num_groups * group, tile->prepared[i]);
        else if (!zse_has_zeros(scheme))
            simd_prepare(inputs.codes[i], tile->num_groups * group, tile->prepared[i]);
    }
    return inputs;
}

/* The sums of 32 columns of NL4_PAIRS, each half times its scales. */
SIMD_INLINE void add_tile_halves(const char *weights, const simd_prepared *const *prepared,
                                 const simd_wide *scales, const simd_wide *last_scales,
                                 simd_wide sums[][SIMD_TILE_VECTORS]) {
    simd_wide last_sums[SIMD_TILE_INPUTS][SIMD_TILE_VECTORS];
    const simd_prepared *last[SIMD_TILE_INPUTS];
    for (int i = 0; i < SIMD_TILE_INPUTS; i++)
        last[i] = prepared[i] + 16;
    simd_tile_signed(weights, prepared, 16, sums);
    simd_tile_signed(weights + simd_strip_bytes(0, 16), last, 16, last_sums);
    for (int i = 0; i < SIMD_TILE_INPUTS; i++)
        for (int vector = 0; vector < SIMD_TILE_VECTORS; vector++)
            sums[i][vector] = simd_wide_fused(last_sums[i][vector], last_scales[vector],
                                              sums[i][vector] * scales[vector]);
}

/* Multiply a strip's chunk with some inputs and add to their totals. */
SIMD_INLINE void add_strip(struct tile *tile, const struct inputs *inputs, int64_t strip,
                           int scheme, int group) {
    for (int64_t index = 0; index < tile->num_groups; index++) {
        const char *weights = strip_weights(tile, index, strip, scheme, group);
        const simd_wide *scales = (const simd_wide *)(tile->scales[index] + strip * ZSE_STRIP_ROWS);
        const simd_wide *zeros = (const simd_wide *)(tile->zeros[index] + strip * ZSE_STRIP_ROWS);
        simd_wide sums[SIMD_TILE_INPUTS][SIMD_TILE_VECTORS];
        const int8_t *codes[SIMD_TILE_INPUTS];
        const simd_prepared *prepared[SIMD_TILE_INPUTS];
        for (int i = 0; i < SIMD_TILE_INPUTS; i++) {
            codes[i] = inputs->codes[i] + index * group;
            prepared[i] = inputs->prepared[i] + index * group;
        }
        if (zse_has_zeros(scheme))
            simd_tile_small(weights, codes, group, sums);
        else if (scheme == ZSE_NL4_PAIRS)
            add_tile_halves(weights, prepared, scales, zeros, sums);
        else
            simd_tile_signed(weights, prepared, group, sums);
        for (int i = 0; i < SIMD_TILE_INPUTS; i++) {
            simd_wide scale = simd_wide_all(inputs->scales[i][index]);
            simd_wide sum = simd_wide_all(inputs->sums[i][index]);
            for (int vector = 0; vector < SIMD_TILE_VECTORS; vector++) {
                simd_wide *place = inputs->totals[i] + strip * SIMD_TILE_VECTORS + vector;
                int is_scaled = scheme == ZSE_INT8 || scheme == ZSE_NL4_PAIRS;
                simd_wide factor = is_scaled ? scale : scales[vector] * scale;
                simd_wide total = simd_wide_fused(sums[i][vector], factor, *place);
                if (zse_has_zeros(scheme))
                    total = simd_wide_fused(zeros[vector], sum, total);
                *place = total;
            }
        }
    }
}

/* Ask for some rows of what is multiplied next: their next chunk, or the next rows' first. */
SIMD_INLINE void prefetch_rows(const struct tile *tile, int64_t first, int64_t count, int scheme,
                               int group) {
    const struct zse_matrix *matrix = tile->matrix;
    int64_t num_rows = tile->num_strips * ZSE_STRIP_ROWS;
    int64_t column = (tile->first_group + tile->num_groups) * group;
    int64_t next = column < matrix->columns ? column : num_rows * matrix->columns;
    for (int64_t row = first; row < zse_smaller(first + count, num_rows); row++)
        zse_prefetch(tile->rows[row] + zse_count_bytes(scheme, next),
                     zse_count_bytes(scheme, CHUNK));
}

/* Ask for the activations of a pass: rows lie apart, so the processor does not foresee them. */
SIMD_INLINE void prefetch_inputs(const struct tile *tile, int64_t pass, int group) {
    const struct zse_quantized *input = tile->input;
    int64_t begin = pass * SIMD_TILE_INPUTS;
    int64_t end = zse_smaller(begin + SIMD_TILE_INPUTS, tile->num_inputs);
    for (int64_t row = tile->first_input + begin; row < tile->first_input + end; row++) {
        int64_t place = row * (input->stride / 32) + tile->first_group;
        zse_prefetch(input->codes + row * input->stride + tile->first_group * group, CHUNK);
        zse_prefetch(input->scales + place, 1);
        zse_prefetch(input->sums + place, 1);
    }
}

SIMD_INLINE void add_chunk(struct tile *tile, int scheme, int group) {
    int64_t num_passes = (tile->num_inputs + SIMD_TILE_INPUTS - 1) / SIMD_TILE_INPUTS;
    int64_t share = (tile->num_strips * ZSE_STRIP_ROWS + num_passes - 1) / num_passes;
    pack_weights(tile, scheme, group);
    for (int64_t i = 0; scheme != ZSE_INT8 && i < tile->num_groups; i++)
        pack_scales(tile, i, scheme);
    for (int64_t pass = 0; pass < num_passes; pass++) {
        prefetch_rows(tile, pass * share, share, scheme, group);
        prefetch_inputs(tile, pass + 1, group);
        struct inputs inputs = find_inputs(tile, pass * SIMD_TILE_INPUTS, scheme, group);
        for (int64_t strip = 0; strip < tile->num_strips; strip++)
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

/* INT3 and INT2 have groups of 64 and 32. */
SIMD_INLINE void add_few_bits(struct tile *tile, int scheme, int group) {
    if (group == 64)
        add_chunk(tile, scheme, 64);
    else
        add_chunk(tile, scheme, 32);
}

static void add_any_chunk(struct tile *tile, int group) {
    if (tile->matrix->scheme == ZSE_INT4)
        add_scheme(tile, ZSE_INT4, group);
    else if (tile->matrix->scheme == ZSE_INT3)
        add_few_bits(tile, ZSE_INT3, group);
    else if (tile->matrix->scheme == ZSE_INT2)
        add_few_bits(tile, ZSE_INT2, group);
    else if (tile->matrix->scheme == ZSE_NF4)
        add_scheme(tile, ZSE_NF4, group);
    else if (tile->matrix->scheme == ZSE_MXFP4)
        add_chunk(tile, ZSE_MXFP4, 32);
    else if (tile->matrix->scheme == ZSE_NL4)
        add_chunk(tile, ZSE_NL4, 32);
    else if (tile->matrix->scheme == ZSE_NL4_PAIRS)
        add_chunk(tile, ZSE_NL4_PAIRS, 32);
    else
        add_scheme(tile, ZSE_INT8, group);
}

static void finish_pass(const struct zse_product *product, const struct tile *tile) {
    int64_t end = zse_smaller(tile->num_strips * ZSE_STRIP_ROWS, tile->matrix->rows - tile->first);
    simd_floats factors[ZSE_TILE_ROWS / SIMD_ROWS];
    for (int64_t column = 0; column < end; column += SIMD_ROWS)
        factors[column / SIMD_ROWS] = zse_column_factors(tile->matrix, tile->first + column);
    for (int64_t row = 0; row < tile->num_inputs; row++)
        for (int64_t column = 0; column < end; column += SIMD_ROWS)
            zse_finish(product, tile->first_input + row, tile->first + column,
                       simd_load(tile->totals[row] + column) * factors[column / SIMD_ROWS]);
}

/* Find rows of weights and their scales; the last one again where the matrix ends. */
static void find_weights(struct tile *tile, int64_t first, int64_t count) {
    const struct zse_matrix *matrix = tile->matrix;
    tile->first = first;
    tile->num_strips = (count + ZSE_STRIP_ROWS - 1) / ZSE_STRIP_ROWS;
    for (int64_t row = 0; row < tile->num_strips * ZSE_STRIP_ROWS; row++) {
        int64_t own = zse_block_row(matrix, first, row);
        tile->rows[row] = (const uint8_t *)matrix->data +
                          zse_count_bytes(matrix->scheme, own * matrix->columns);
        tile->row_scales[row] = (const char *)matrix->scales + zse_count_scale_bytes(matrix, own);
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
    int64_t rows = zse_tile_rows(product);
    tile->matrix = product->matrix;
    tile->input = &product->quantized;
    for (int64_t begin = 0; begin < count; begin += rows) {
        find_weights(tile, first + begin, zse_smaller(rows, count - begin));
        multiply_tile(product, tile);
    }
}

#endif
