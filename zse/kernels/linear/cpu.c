/* The matrix product of a step: which pieces it falls into, and which arithmetic it takes.
 *
 * A piece is some rows of the weights for all rows of the step, so the weights are read once.
 */
#include "../native/share.h"
#include "cpu.h"

/* Weights that a piece reads: few enough to share evenly, enough to hide what a claim costs. */
#define PIECE_BYTES (32 << 10)
/* The same where each piece begins by preparing more rows of activations than these. */
#define LONG_PIECE_BYTES (128 << 10)
#define FEW_ROWS 16
/* Pieces a thread, at least, where a matrix is small. */
#define THREAD_PIECES 4
#ifndef SIMD_MOST_WITHOUT_TILES
#define SIMD_MOST_WITHOUT_TILES 8
#endif

/* Whether so many rows are multiplied that turning the weights for them pays. */
static int takes_tiles(const struct zse_product *product) {
#ifdef SIMD_TILE_INPUTS
    return product->group && product->num_rows > SIMD_MOST_WITHOUT_TILES;
#else
    (void)product;
    return 0;
#endif
}

void zse_multiply_part(const struct zse_product *product, int64_t first, int64_t count,
                       struct zse_worker *worker) {
    if (zse_takes_turned(product))
        zse_multiply_turned(product, first, count, worker);
    else if (takes_tiles(product))
        zse_multiply_tiles(product, first, count, worker);
    else if (product->group && product->num_rows == 1)
        zse_multiply_one(product, first, count, worker);
    else if (product->group)
        zse_multiply_codes(product, first, count, worker);
    else
        zse_multiply_floats(product, first, count, worker);
}

static struct zse_product product_of(const struct zse_operation *operation,
                                     const struct zse_step *step) {
    return (struct zse_product){
        .matrix = operation->matrix,
        .inputs = step->registers[operation->input],
        .quantized = step->quantized,
        .num_rows = rows_of_operation(operation, step),
        .output = step->registers[operation->output],
        .group = operation->quantizes,
        .adds = operation->kind == ZSE_OP_MULTIPLY_ADD,
        .scale = operation->scale,
    };
}

static int64_t piece_rows(const struct zse_product *product, int num_threads) {
#ifdef SIMD_TILE_INPUTS
    if (takes_tiles(product) && !zse_takes_turned(product))
        return zse_tile_rows(product);
#endif
    const struct zse_matrix *matrix = product->matrix;
    int64_t share = matrix->rows / (THREAD_PIECES * num_threads);
    int64_t bytes = zse_count_bytes(matrix->scheme, matrix->columns);
    if (!zse_takes_turned(product))
        return (zse_smaller(PIECE_BYTES / bytes, share) / SIMD_ROWS + 1) * SIMD_ROWS;
    int64_t most = product->num_rows > FEW_ROWS ? LONG_PIECE_BYTES : PIECE_BYTES;
    return (zse_smaller(most / bytes, share) / ZSE_TURNED_ROWS + 1) * ZSE_TURNED_ROWS;
}

static int64_t count_pieces(const struct zse_operation *operation, const struct zse_step *step,
                            int num_threads) {
    struct zse_product product = product_of(operation, step);
    int64_t rows = piece_rows(&product, num_threads);
    return product.num_rows ? (product.matrix->rows + rows - 1) / rows : 0;
}

/* Threads claim pieces in turn: let each find its next one behind its last one, of which it has
 * asked for the first bytes. */
static int64_t place_of(int64_t piece, int64_t num_pieces, int64_t num_threads) {
    int64_t share = num_pieces / num_threads, rest = num_pieces % num_threads;
    int64_t turn = piece % num_threads;
    return turn * share + zse_smaller(turn, rest) + piece / num_threads;
}

static void run_piece(const struct zse_operation *operation, const struct zse_step *step,
                      int64_t piece, struct zse_worker *worker) {
    struct zse_product product = product_of(operation, step);
    int64_t num_pieces = count_pieces(operation, step, worker->num_threads);
    int64_t rows = piece_rows(&product, worker->num_threads);
    int64_t first = place_of(piece, num_pieces, worker->num_threads) * rows;
    zse_multiply_part(&product, first, zse_smaller(rows, product.matrix->rows - first), worker);
}

const struct zse_kernel zse_multiply = {count_pieces, run_piece};
