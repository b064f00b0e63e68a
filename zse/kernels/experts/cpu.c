/* Products of chosen experts: each expert's weights are read once, for all rows that go through it.
 *
 * The rows of an expert follow each other, so its product is that of any matrix. What a row gets is
 * added up in the order of its choices, whatever stands beside it: its bits depend on no other row.
 */
#include "../linear/cpu.h"
#include "../native/share.h"
#include "../native/vector.h"

/* Weights that a piece reads, about; its rows are whole tiles. */
#define PIECE_BYTES (64 << 10)

static const struct zse_run *runs_of(const struct zse_step *step) {
    return (const struct zse_run *)step->registers[ZSE_RUNS];
}

/* --- rows for experts ------------------------------------------------------------------------- */

static int64_t count_gathered_pieces(const struct zse_operation *operation,
                                     const struct zse_step *step, int num_threads) {
    (void)operation;
    (void)num_threads;
    return count_row_pieces(step->rows);
}

static void copy_quantized(const struct zse_step *step, int64_t row, int64_t place,
                           int64_t columns) {
    const struct zse_quantized *from = &step->quantized, *to = &step->chosen;
    int64_t numbers = (columns + 31) / 32;
    int64_t own = row * (from->stride / 32), other = place * (to->stride / 32);
    int64_t whole = (columns + ZSE_ACTIVATION_GROUP - 1) / ZSE_ACTIVATION_GROUP;
    memcpy(to->codes + place * to->stride, from->codes + row * from->stride,
           (size_t)(whole * ZSE_ACTIVATION_GROUP));
    memcpy(to->scales + other, from->scales + own, (size_t)numbers * sizeof(float));
    memcpy(to->sums + other, from->sums + own, (size_t)numbers * sizeof(float));
}

static void run_gather_piece(const struct zse_operation *operation, const struct zse_step *step,
                             int64_t piece, struct zse_worker *worker) {
    (void)worker;
    int64_t count = operation->experts->experts_per_token, width = operation->width;
    struct row_range rows = rows_of_piece(step->rows, piece);
    const struct zse_choice *choices = (const struct zse_choice *)step->registers[ZSE_CHOICES];
    for (int64_t i = rows.first * count; i < rows.end * count; i++) {
        if (operation->quantizes)
            copy_quantized(step, i / count, choices[i].place, width);
        else
            memcpy(step->registers[operation->output] + choices[i].place * width,
                   step->registers[operation->input] + i / count * width,
                   (size_t)width * sizeof(float));
    }
}

const struct zse_kernel zse_gather = {count_gathered_pieces, run_gather_piece};

/* --- products --------------------------------------------------------------------------------- */

static int64_t piece_rows(const struct zse_matrix *matrix) {
    int64_t tiles = PIECE_BYTES / ZSE_TILE_ROWS / zse_count_bytes(matrix->scheme, matrix->columns);
    return (tiles > 1 ? tiles : 1) * ZSE_TILE_ROWS;
}

static int64_t pieces_a_run(const struct zse_operation *operation) {
    int64_t rows = operation->matrix->rows / operation->experts->num_experts;
    int64_t at_once = piece_rows(operation->matrix);
    return (rows + at_once - 1) / at_once;
}

static int64_t count_pieces(const struct zse_operation *operation, const struct zse_step *step,
                            int num_threads) {
    (void)num_threads;
    return step->rows ? runs_of(step)->end * pieces_a_run(operation) : 0;
}

static void run_piece(const struct zse_operation *operation, const struct zse_step *step,
                      int64_t piece, struct zse_worker *worker) {
    const struct zse_run *run = runs_of(step) + 1 + piece / pieces_a_run(operation);
    const struct zse_matrix *stack = operation->matrix;
    int64_t rows = stack->rows / operation->experts->num_experts, at_once = piece_rows(stack);
    struct zse_matrix matrix = zse_matrix_rows(stack, run->expert * rows, rows);
    struct zse_product product = {
        .matrix = &matrix,
        .inputs = step->registers[operation->input] + run->first * stack->columns,
        .quantized = zse_quantized_rows(&step->chosen, run->first),
        .num_rows = run->end - run->first,
        .output = step->registers[operation->output] + run->first * rows,
        .group = operation->quantizes,
    };
    int64_t first = piece % pieces_a_run(operation) * at_once;
    zse_multiply_part(&product, first, zse_smaller(at_once, rows - first), worker);
}

const struct zse_kernel zse_multiply_experts = {count_pieces, run_piece};

/* --- sums ------------------------------------------------------------------------------------- */

static void combine_row(const struct zse_choice *choices, int64_t count, const float *chosen,
                        int64_t width, float *output) {
    for (int64_t column = 0; column < width; column += VECTOR_LANES) {
        int64_t left = width - column;
        vfloat sum = {0};
        for (int64_t i = 0; i < count; i++)
            sum += vload_some(chosen + choices[i].place * width + column, left) * choices[i].weight;
        vstore_some(output + column, sum, left);
    }
}

static void run_combine_piece(const struct zse_operation *operation, const struct zse_step *step,
                              int64_t piece, struct zse_worker *worker) {
    (void)worker;
    int64_t count = operation->experts->experts_per_token, width = operation->width;
    struct row_range rows = rows_of_piece(step->rows, piece);
    const struct zse_choice *choices = (const struct zse_choice *)step->registers[ZSE_CHOICES];
    for (int64_t row = rows.first; row < rows.end; row++)
        combine_row(choices + row * count, count, step->registers[operation->input], width,
                    step->registers[operation->output] + row * width);
}

const struct zse_kernel zse_combine = {count_gathered_pieces, run_combine_piece};
