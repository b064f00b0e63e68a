/* The rows of the embedding that the tokens name, and those that their positions and types name. */
#include "../linear/cpu.h"

/* Numbers of a row that are added at once: whole groups of any scheme. */
#define NUMBERS_AT_ONCE 256

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

static void run_add_piece(const struct zse_operation *operation, const struct zse_step *step,
                          int64_t piece, struct zse_worker *worker) {
    (void)worker;
    const struct zse_matrix *matrix = operation->matrix;
    const int32_t *names = operation->kind == ZSE_OP_TYPE ? step->types : step->positions;
    int64_t columns = matrix->columns;
    float *output = step->registers[operation->output] + piece * columns;
    float numbers[NUMBERS_AT_ONCE];
    for (int64_t first = 0; first < columns; first += NUMBERS_AT_ONCE) {
        int64_t left = columns - first, count = left < NUMBERS_AT_ONCE ? left : NUMBERS_AT_ONCE;
        zse_dequantize(matrix, names[piece], first, count, numbers);
        for (int64_t i = 0; i < count; i++)
            output[first + i] += numbers[i];
    }
}

const struct zse_kernel zse_add_rows = {count_pieces, run_add_piece};
