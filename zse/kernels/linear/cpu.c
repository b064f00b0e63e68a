/* The matrix product of a step: which pieces it falls into, and which arithmetic it takes.
 *
 * A piece is some rows of the weights for all rows of the step, so the weights are read once.
 */
#include "cpu.h"

/* Weights that a piece reads: few enough to share work evenly, enough to hide what a claim costs. */
#define PIECE_BYTES (64 << 10)
/* Pieces a thread, at least, where a matrix is small. */
#define THREAD_PIECES 4
#define MOST_ROWS_WITHOUT_TILES 8

/* Whether so many rows are multiplied that turning the weights for them pays. */
static int takes_tiles(const struct zse_operation *operation, const struct zse_step *step) {
#ifdef SIMD_TILE_INPUTS
    return operation->quantizes && zse_count_rows(operation, step) > MOST_ROWS_WITHOUT_TILES;
#else
    (void)operation, (void)step;
    return 0;
#endif
}

static int64_t piece_rows(const struct zse_operation *operation, const struct zse_step *step,
                          int num_threads) {
    if (takes_tiles(operation, step))
        return ZSE_TILE_ROWS;
    const struct zse_matrix *matrix = operation->matrix;
    int64_t share = matrix->rows / (THREAD_PIECES * num_threads);
    int64_t bytes = zse_count_bytes(matrix->scheme, matrix->columns);
    int64_t rows = zse_smaller(PIECE_BYTES / bytes, share);
    return (rows / SIMD_ROWS + 1) * SIMD_ROWS;
}

static int64_t count_pieces(const struct zse_operation *operation, const struct zse_step *step,
                            int num_threads) {
    int64_t rows = piece_rows(operation, step, num_threads);
    return zse_count_rows(operation, step) ? (operation->matrix->rows + rows - 1) / rows : 0;
}

static void run_piece(const struct zse_operation *operation, const struct zse_step *step,
                      int64_t piece, struct zse_worker *worker) {
    int64_t rows = piece_rows(operation, step, worker->num_threads);
    int64_t first = piece * rows;
    int64_t count = zse_smaller(rows, operation->matrix->rows - first);
    if (takes_tiles(operation, step))
        zse_multiply_tiles(operation, step, first, count, worker);
    else if (operation->quantizes)
        zse_multiply_codes(operation, step, first, count, worker);
    else
        zse_multiply_floats(operation, step, first, count, worker);
}

const struct zse_kernel zse_multiply = {count_pieces, run_piece};
