/* Norms of rows, quantized where int8 matrices read them, and what is done number by number. */
#include "../native/row_norm.h"
#include "../native/share.h"
#include "../native/vector_math.h"

/* Numbers that a piece changes where rows do not matter: whole vectors. */
#define NUMBERS_A_PIECE 16384

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
        int64_t source = operation->row_set == ZSE_WANTED_ROWS ? step->wanted[row] : row;
        const float *input = step->registers[operation->input] + source * width;
        float *output = step->registers[operation->output] + row * width;
        normalize_row(input, width, operation->norm, operation->scale, output);
        if (operation->quantizes)
            zse_quantize_columns(output, row, 0, width, operation->quantizes, &step->quantized);
    }
}

const struct zse_kernel zse_norm_rows = {count_norm_pieces, run_norm_piece};

/* A sum may have a gate for each row. */
static void run_add_piece(const struct zse_operation *operation, const struct zse_step *step,
                          int64_t piece, struct zse_worker *worker) {
    (void)worker;
    int64_t width = operation->width;
    struct row_range rows = rows_of_piece(rows_of_operation(operation, step), piece);
    for (int64_t row = rows.first; row < rows.end; row++) {
        const float *input = step->registers[operation->input] + row * width;
        float *output = step->registers[operation->output] + row * width;
        float scale = operation->scale;
        if (operation->kind == ZSE_OP_ADD_GATED)
            scale = vsigmoid(vbroadcast(step->registers[ZSE_SHARED_GATE][row]))[0];
        for (int64_t column = 0; column < width; column += VECTOR_LANES) {
            vfloat sum = vload_some(output + column, width - column);
            sum += vload_some(input + column, width - column) * scale;
            vstore_some(output + column, sum, width - column);
        }
    }
}

const struct zse_kernel zse_add = {count_norm_pieces, run_add_piece};

/* A row of the input is many short ones, each with its norm. */
static void run_add_parts_piece(const struct zse_operation *operation,
                                const struct zse_step *step, int64_t piece,
                                struct zse_worker *worker) {
    (void)worker;
    int64_t columns = operation->matrix->rows, width = operation->width;
    struct row_range rows = rows_of_piece(rows_of_operation(operation, step), piece);
    for (int64_t row = rows.first; row < rows.end; row++) {
        float *input = step->registers[operation->input] + row * columns;
        float *output = step->registers[operation->output] + row * columns;
        for (int64_t first = 0; first < columns; first += width)
            normalize_row(input + first, width, operation->norm, 1.0f, input + first);
        for (int64_t column = 0; column < columns; column += VECTOR_LANES) {
            int64_t left = columns - column;
            vfloat sum = vload_some(output + column, left) + vload_some(input + column, left);
            vstore_some(output + column, sum, left);
        }
    }
}

const struct zse_kernel zse_add_parts = {count_norm_pieces, run_add_parts_piece};

/* A row of logits is long enough for all threads. */
static int64_t count_column_pieces(const struct zse_operation *operation,
                                   const struct zse_step *step, int num_threads) {
    (void)num_threads;
    int64_t numbers = rows_of_operation(operation, step) * operation->width;
    return (numbers + NUMBERS_A_PIECE - 1) / NUMBERS_A_PIECE;
}

ALWAYS_INLINE void change_numbers(const struct zse_operation *operation,
                                  const struct zse_step *step, int64_t piece, int is_capped) {
    int64_t end = rows_of_operation(operation, step) * operation->width;
    int64_t first = piece * NUMBERS_A_PIECE;
    end = end - first < NUMBERS_A_PIECE ? end : first + NUMBERS_A_PIECE;
    float *output = step->registers[operation->output], scale = operation->scale;
    for (int64_t place = first; place < end; place += VECTOR_LANES) {
        vfloat numbers = vload_some(output + place, end - place);
        numbers = is_capped ? scale * vtanh(numbers / scale) : numbers * scale;
        vstore_some(output + place, numbers, end - place);
    }
}

static void run_scale_piece(const struct zse_operation *operation, const struct zse_step *step,
                            int64_t piece, struct zse_worker *worker) {
    (void)worker;
    change_numbers(operation, step, piece, 0);
}

const struct zse_kernel zse_scale = {count_column_pieces, run_scale_piece};

static void run_cap_piece(const struct zse_operation *operation, const struct zse_step *step,
                          int64_t piece, struct zse_worker *worker) {
    (void)worker;
    change_numbers(operation, step, piece, 1);
}

const struct zse_kernel zse_cap = {count_column_pieces, run_cap_piece};
