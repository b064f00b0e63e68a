/* Products of float32 activations: plain matrices, and quantized ones where activations stay exact.
 *
 * Eight rows of weights are widened a chunk at a time into the first cache and multiplied with each
 * row of the step. A product adds lane by lane in the order of its columns and its lanes in the
 * end, whatever is computed beside it.
 */
#include "cpu.h"

#define CHUNK 256              /* columns; whole groups */
#define PASS_ROWS 64           /* rows of the step whose lanes are kept over the chunks */

struct pass {
    simd_floats lanes[PASS_ROWS][SIMD_ROWS];
    float weights[SIMD_ROWS][CHUNK];
    float padded[CHUNK];
    int64_t first;             /* row of the step */
    int64_t count;
};
_Static_assert(sizeof(struct pass) <= ZSE_SCRATCH_BYTES, "a pass lies in a worker's scratch");

SIMD_INLINE void add_products(const float (*weights)[CHUNK], const float *input, int64_t count,
                              simd_floats *lanes) {
    simd_floats sums[SIMD_ROWS];
    memcpy(sums, lanes, sizeof sums);
    for (int64_t i = 0; i < count; i += SIMD_ROWS) {
        simd_floats numbers = simd_load(input + i);
        for (int row = 0; row < SIMD_ROWS; row++)
            sums[row] = simd_fused(simd_load(weights[row] + i), numbers, sums[row]);
    }
    memcpy(lanes, sums, sizeof sums);
}

static void add_chunk(struct pass *pass, const struct zse_matrix *matrix, const float *inputs,
                      int64_t first_column) {
    int64_t count = zse_smaller(CHUNK, matrix->columns - first_column);
    int64_t whole = (count + SIMD_ROWS - 1) / SIMD_ROWS * SIMD_ROWS;
    for (int64_t row = 0; row < pass->count; row++) {
        const float *input = inputs + (pass->first + row) * matrix->columns + first_column;
        if (whole > count) {
            memset(pass->padded + count, 0, (size_t)(whole - count) * sizeof *input);
            input = memcpy(pass->padded, input, (size_t)count * sizeof *input);
        }
        add_products(pass->weights, input, whole, pass->lanes[row]);
    }
}

static void widen_chunk(struct pass *pass, const struct zse_matrix *matrix, int64_t first,
                        int64_t first_column) {
    int64_t count = zse_smaller(CHUNK, matrix->columns - first_column);
    for (int64_t row = 0; row < SIMD_ROWS; row++) {
        memset(pass->weights[row] + count, 0, (size_t)(CHUNK - count) * sizeof(float));
        zse_dequantize(matrix, zse_block_row(matrix, first, row), first_column, count,
                       pass->weights[row]);
    }
}

static void multiply_block(const struct zse_operation *operation, const struct zse_step *step,
                           int64_t first, struct pass *pass) {
    const struct zse_matrix *matrix = operation->matrix;
    int64_t num_rows = zse_count_rows(operation, step);
    for (pass->first = 0; pass->first < num_rows; pass->first += PASS_ROWS) {
        pass->count = zse_smaller(PASS_ROWS, num_rows - pass->first);
        memset(pass->lanes, 0, (size_t)pass->count * sizeof pass->lanes[0]);
        for (int64_t column = 0; column < matrix->columns; column += CHUNK) {
            widen_chunk(pass, matrix, first, column);
            add_chunk(pass, matrix, step->registers[operation->input], column);
        }
        for (int64_t row = 0; row < pass->count; row++)
            zse_finish(operation, step, pass->first + row, first,
                       simd_sum_lanes(pass->lanes[row]));
    }
}

void zse_multiply_floats(const struct zse_operation *operation, const struct zse_step *step,
                         int64_t first, int64_t count, struct zse_worker *worker) {
    for (int64_t row = first; row < first + count; row += SIMD_ROWS)
        multiply_block(operation, step, row, worker->scratch);
}
