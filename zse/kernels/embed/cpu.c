/* The rows of the embedding that the tokens name. */
#include "../linear/cpu.h"

static int64_t count_pieces(const struct zse_operation *operation, const struct zse_step *step,
                            int num_threads) {
    (void)operation;
    (void)num_threads;
    return step->rows;
}

static void run_piece(const struct zse_operation *operation, const struct zse_step *step,
                      int64_t piece, struct zse_worker *worker) {
    (void)worker;
    const struct zse_matrix *matrix = operation->matrix;
    int64_t columns = matrix->columns;
    float *output = step->registers[operation->output] + piece * columns;
    zse_dequantize(matrix, step->tokens[piece], 0, columns, output);
    for (int64_t i = 0; i < columns; i++)
        output[i] *= operation->scale;
}

const struct zse_kernel zse_embed = {count_pieces, run_piece};
