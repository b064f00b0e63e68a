/* Norms of rows, quantized where int8 matrices read them, and sums of two registers. */
#include "../native/row_norm.h"
#include "../native/share.h"

static int64_t count_norm_pieces(const struct zse_operation *operation,
                                 const struct zse_step *step, int num_threads) {
    (void)num_threads;
    return count_row_pieces(rows_of_operation(operation, step));
}

static void run_norm_piece(const struct zse_operation *operation, const struct zse_step *step,
                           int64_t piece, struct zse_worker *worker) {
    (void)worker;
    int64_t width = operation->width;
    struct row_range rows = rows_of_piece(rows_of_operation(operation, step), piece);
    for (int64_t row = rows.first; row < rows.end; row++) {
        int64_t source = operation->of_wanted ? step->wanted[row] : row;
        const float *input = step->registers[operation->input] + source * width;
        float *output = step->registers[operation->output] + row * width;
        normalize_row(input, width, operation->norm, operation->scale, output);
        if (operation->quantizes)
            zse_quantize_columns(output, row, 0, width, operation->quantizes, &step->quantized);
    }
}

const struct zse_kernel zse_norm_rows = {count_norm_pieces, run_norm_piece};

static void run_add_piece(const struct zse_operation *operation, const struct zse_step *step,
                          int64_t piece, struct zse_worker *worker) {
    (void)worker;
    int64_t width = operation->width;
    struct row_range rows = rows_of_piece(rows_of_operation(operation, step), piece);
    const float *input = step->registers[operation->input];
    float *output = step->registers[operation->output];
    int64_t end = rows.end * width;
    for (int64_t place = rows.first * width; place < end; place += VECTOR_LANES) {
        vfloat sum = vload_some(output + place, end - place);
        sum += vload_some(input + place, end - place) * operation->scale;
        vstore_some(output + place, sum, end - place);
    }
}

const struct zse_kernel zse_add = {count_norm_pieces, run_add_piece};
