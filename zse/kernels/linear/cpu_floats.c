/* Products of float32 activations: plain matrices, and quantized ones where activations stay exact.
 *
 * Eight rows of weights are walked side by side. For one row of activations plain weights are
 * widened in registers; else a chunk of them is widened into the first cache and multiplied with
 * each row. A product adds lane by lane in the order of its columns and its lanes in the end,
 * whatever is computed beside it: it has the same bits in any batch.
 */
#include "cpu.h"

#define CHUNK 256              /* columns; whole groups */
#define PASS_ROWS 64           /* rows of the step whose lanes are kept over the chunks */
/* Rows of weights and of activations whose lanes fit in sixteen registers with what they need. */
#define BLOCK_WEIGHTS 4
#define BLOCK_INPUTS 3

struct pass {
    simd_floats lanes[PASS_ROWS][SIMD_ROWS];
    float weights[SIMD_ROWS][CHUNK];
    float padded[PASS_ROWS][CHUNK];
    const float *inputs[PASS_ROWS];
    int64_t first;             /* row of the step */
    int64_t count;
};
_Static_assert(sizeof(struct pass) <= ZSE_SCRATCH_BYTES, "a pass lies in a worker's scratch");

/* Multiply some rows of a chunk of weights with some rows of activations. */
SIMD_INLINE void add_block(struct pass *pass, int first_weight, int num_weights,
                           int64_t first_input, int num_inputs, int64_t count) {
    simd_floats sums[BLOCK_INPUTS][SIMD_ROWS];
    for (int input = 0; input < num_inputs; input++)
        for (int row = 0; row < num_weights; row++)
            sums[input][row] = pass->lanes[first_input + input][first_weight + row];
    for (int64_t i = 0; i < count; i += SIMD_ROWS) {
        simd_floats numbers[BLOCK_INPUTS];
        for (int input = 0; input < num_inputs; input++)
            numbers[input] = simd_load(pass->inputs[first_input + input] + i);
        for (int row = 0; row < num_weights; row++) {
            simd_floats weights = simd_load(pass->weights[first_weight + row] + i);
            for (int input = 0; input < num_inputs; input++)
                sums[input][row] = simd_fused(weights, numbers[input], sums[input][row]);
        }
    }
    for (int input = 0; input < num_inputs; input++)
        for (int row = 0; row < num_weights; row++)
            pass->lanes[first_input + input][first_weight + row] = sums[input][row];
}

/* Find a chunk of the activations; zeros follow where it is no multiple of a vector. */
static void find_inputs(struct pass *pass, const struct zse_matrix *matrix, const float *inputs,
                        int64_t first_column, int64_t count) {
    for (int64_t row = 0; row < pass->count; row++) {
        pass->inputs[row] = inputs + (pass->first + row) * matrix->columns + first_column;
        if (count % SIMD_ROWS) {
            float *padded = pass->padded[row];
            memset(padded, 0, sizeof pass->padded[row]);
            pass->inputs[row] = memcpy(padded, pass->inputs[row], (size_t)count * sizeof *padded);
        }
    }
}

static void widen_chunk(struct pass *pass, const struct zse_matrix *matrix, int64_t first,
                        int64_t first_column, int64_t count) {
    int64_t next_column = first_column + CHUNK < matrix->columns ? first_column + CHUNK : 0;
    for (int64_t row = 0; row < SIMD_ROWS; row++) {
        int64_t own = zse_block_row(matrix, first, row);
        int64_t next = (next_column ? own : own + SIMD_ROWS) * matrix->columns + next_column;
        zse_prefetch((const char *)matrix->data + zse_count_bytes(matrix->scheme, next),
                     zse_count_bytes(matrix->scheme, CHUNK));
        memset(pass->weights[row] + count, 0, (size_t)(CHUNK - count) * sizeof(float));
        zse_dequantize(matrix, own, first_column, count, pass->weights[row]);
    }
}

static void add_chunk(struct pass *pass, const struct zse_product *product, int64_t first,
                      int64_t first_column) {
    const struct zse_matrix *matrix = product->matrix;
    int64_t count = zse_smaller(CHUNK, matrix->columns - first_column);
    int64_t whole = (count + SIMD_ROWS - 1) / SIMD_ROWS * SIMD_ROWS;
    find_inputs(pass, matrix, product->inputs, first_column, count);
    widen_chunk(pass, matrix, first, first_column, count);
    int64_t row = 0;
    for (; row + BLOCK_INPUTS <= pass->count; row += BLOCK_INPUTS)
        for (int weight = 0; weight < SIMD_ROWS; weight += BLOCK_WEIGHTS)
            add_block(pass, weight, BLOCK_WEIGHTS, row, BLOCK_INPUTS, whole);
    for (; row < pass->count; row++)
        add_block(pass, 0, SIMD_ROWS, row, 1, whole);
}

/* One row of activations times eight rows of plain numbers; whole vectors of columns. */
SIMD_INLINE void add_single(const struct zse_matrix *matrix, int scheme, int64_t first,
                            const float *input, simd_floats *lanes) {
    const int64_t line = 64 / zse_count_bytes(scheme, 1);
    const char *rows[SIMD_ROWS];
    simd_floats sums[SIMD_ROWS] = {0};
    for (int64_t row = 0; row < SIMD_ROWS; row++)
        rows[row] = (const char *)matrix->data +
                    zse_count_bytes(scheme, zse_block_row(matrix, first, row) * matrix->columns);
    const char *next = rows[0] + zse_count_bytes(scheme, SIMD_ROWS * matrix->columns);
    for (int64_t begin = 0; begin < matrix->columns; begin += line) {
        zse_prefetch(next + zse_count_bytes(scheme, begin * SIMD_ROWS), 64 * SIMD_ROWS);
        int64_t end = zse_smaller(begin + line, matrix->columns);
        for (int64_t i = begin; i < end; i += SIMD_ROWS) {
            simd_floats numbers = simd_load(input + i);
            for (int row = 0; row < SIMD_ROWS; row++) {
                const char *weights = rows[row] + zse_count_bytes(scheme, i);
                sums[row] = simd_fused(zse_widen_vector(weights, scheme), numbers, sums[row]);
            }
        }
    }
    memcpy(lanes, sums, sizeof sums);
}

static void add_any_single(struct pass *pass, const struct zse_product *product, int64_t first) {
    const struct zse_matrix *matrix = product->matrix;
    const float *input = product->inputs + pass->first * matrix->columns;
    if (matrix->scheme == ZSE_FP32)
        add_single(matrix, ZSE_FP32, first, input, pass->lanes[0]);
    else if (matrix->scheme == ZSE_FP16)
        add_single(matrix, ZSE_FP16, first, input, pass->lanes[0]);
    else
        add_single(matrix, ZSE_BF16, first, input, pass->lanes[0]);
}

static void multiply_block(const struct zse_product *product, int64_t first, struct pass *pass) {
    const struct zse_matrix *matrix = product->matrix;
    int64_t num_rows = product->num_rows;
    int is_plain = matrix->scheme <= ZSE_BF16 && matrix->columns % SIMD_ROWS == 0;
    for (pass->first = 0; pass->first < num_rows; pass->first += PASS_ROWS) {
        pass->count = zse_smaller(PASS_ROWS, num_rows - pass->first);
        memset(pass->lanes, 0, (size_t)pass->count * sizeof pass->lanes[0]);
        if (pass->count == 1 && is_plain)
            add_any_single(pass, product, first);
        else
            for (int64_t column = 0; column < matrix->columns; column += CHUNK)
                add_chunk(pass, product, first, column);
        for (int64_t row = 0; row < pass->count; row++)
            zse_finish(product, pass->first + row, first, simd_sum_lanes(pass->lanes[row]));
    }
}

void zse_multiply_floats(const struct zse_product *product, int64_t first, int64_t count,
                         struct zse_worker *worker) {
    for (int64_t row = first; row < first + count; row += SIMD_ROWS)
        multiply_block(product, row, worker->scratch);
}
