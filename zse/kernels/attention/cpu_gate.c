/* The gates of attention: what it returns times the sigmoid of a number of the row itself. */
#include "../native/qkv.h"
#include "../native/share.h"
#include "../native/vector_math.h"

/* A multiple of every group. */
#define COLUMNS_A_PIECE 1024

static int64_t column_pieces(const struct zse_operation *operation) {
    return (query_columns(operation->attention) + COLUMNS_A_PIECE - 1) / COLUMNS_A_PIECE;
}

static int64_t count_pieces(const struct zse_operation *operation, const struct zse_step *step,
                            int num_threads) {
    (void)num_threads;
    return rows_of_operation(operation, step) * column_pieces(operation);
}

static void run_piece(const struct zse_operation *operation, const struct zse_step *step,
                      int64_t piece, struct zse_worker *worker) {
    (void)worker;
    int64_t width = query_columns(operation->attention), pieces = column_pieces(operation);
    int64_t row = piece / pieces, first = piece % pieces * COLUMNS_A_PIECE;
    int64_t end = width - first < COLUMNS_A_PIECE ? width : first + COLUMNS_A_PIECE;
    const float *gates = step->registers[ZSE_QKV] + row * qkv_width(operation->attention) + width;
    float *output = step->registers[operation->output] + row * width;
    for (int64_t column = first; column < end; column += VECTOR_LANES) {
        vfloat values = vload_some(output + column, end - column);
        values *= vsigmoid(vload_some(gates + column, end - column));
        vstore_some(output + column, values, end - column);
    }
    if (operation->quantizes)
        zse_quantize_columns(output, row, first, end - first, operation->quantizes,
                             &step->quantized);
}

const struct zse_kernel zse_gate = {count_pieces, run_piece};
