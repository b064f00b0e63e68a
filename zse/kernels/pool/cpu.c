/* The vectors of whole texts: the mean of a chunk's rows, its first or its last. */
#include "../native/vector.h"
#include "../native/zse.h"

/* Columns that a piece has: some vectors, so that a long text is shared by threads. */
#define COLUMNS_A_PIECE 128

static int64_t pieces_a_text(const struct zse_operation *operation) {
    return (operation->width + COLUMNS_A_PIECE - 1) / COLUMNS_A_PIECE;
}

static int64_t count_pieces(const struct zse_operation *operation, const struct zse_step *step,
                            int num_threads) {
    (void)num_threads;
    return step->num_chunks * pieces_a_text(operation);
}

static void run_piece(const struct zse_operation *operation, const struct zse_step *step,
                      int64_t piece, struct zse_worker *worker) {
    (void)worker;
    int64_t text = piece / pieces_a_text(operation), width = operation->width;
    int64_t begin = piece % pieces_a_text(operation) * COLUMNS_A_PIECE;
    int64_t end = begin + COLUMNS_A_PIECE < width ? begin + COLUMNS_A_PIECE : width;
    const struct zse_rows *rows = step->chunks + text;
    int64_t first = rows->first_row, count = rows->num_rows;
    if (operation->pooling == ZSE_POOL_LAST) first += count - 1;
    if (operation->pooling != ZSE_POOL_MEAN) count = 1;
    const float *input = step->registers[operation->input] + first * width;
    float *output = step->registers[operation->output] + text * width;
    for (int64_t column = begin; column < end; column += VECTOR_LANES) {
        int64_t left = end - column;
        vfloat sum = {0};
        for (int64_t row = 0; row < count; row++)
            sum += vload_some(input + row * width + column, left);
        vstore_some(output + column, sum / (float)count, left);
    }
}

const struct zse_kernel zse_pool_rows = {count_pieces, run_piece};
