/* What adapters add to a product: two thin matrices, for the rows of sequences that use one.
 *
 * The rank is small, so a row is multiplied alone: its bits depend on no other row, and rows of
 * different adapters lie side by side in a step.
 */
#include "../native/share.h"
#include "../native/vector.h"

/* Columns of a product that a piece adds to: one row of a wide matrix is shared by threads. */
#define COLUMNS_A_PIECE 2048
/* Lines of the second matrix that are added up before their sum is stored. */
#define LINES_AT_ONCE 8

/* A row of a product, and what its adapter adds to it. */
struct adapted {
    const struct zse_adaptation *adaptation; /* or NULL */
    int64_t input;                           /* row of the product's input */
    int64_t output;
};

/* Products of a row of the step: one, or one with each of its experts. */
static int64_t products_a_row(const struct zse_operation *operation) {
    return operation->row_set == ZSE_CHOSEN_ROWS ? operation->experts->experts_per_token : 1;
}

/* Rows of chosen experts lie at their places; what the experts read first are rows of the step. */
static struct adapted adapted_of(const struct zse_operation *operation,
                                 const struct zse_step *step, int64_t product) {
    int64_t row = product / products_a_row(operation), number = operation->layer, place = row;
    if (operation->row_set == ZSE_CHOSEN_ROWS) {
        const struct zse_choice *choice =
            (const struct zse_choice *)step->registers[ZSE_CHOICES] + product;
        number += choice->expert;
        place = choice->place;
    }
    const struct zse_adaptation *adapter = step->adapters[row];
    int is_there = adapter && adapter[number].num_parts;
    return (struct adapted){
        .adaptation = is_there ? adapter + number : NULL,
        .input = operation->input == ZSE_CHOSEN_HIDDEN ? place : row,
        .output = place,
    };
}

static int64_t rows_of_matrix(const struct zse_operation *operation) {
    int64_t members =
        operation->row_set == ZSE_CHOSEN_ROWS ? operation->experts->num_experts : 1;
    return operation->matrix->rows / members;
}

static float dot(const float *left, const float *right, int64_t count) {
    vfloat sums[4] = {{0}, {0}, {0}, {0}};
    int64_t i = 0;
    for (; i + 4 * VECTOR_LANES <= count; i += 4 * VECTOR_LANES)
        for (int lane = 0; lane < 4; lane++)
            sums[lane] += vload(left + i + lane * VECTOR_LANES) *
                          vload(right + i + lane * VECTOR_LANES);
    for (; i < count; i += VECTOR_LANES)
        sums[0] += vload_some(left + i, count - i) * vload_some(right + i, count - i);
    return vsum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

static int64_t count_down_pieces(const struct zse_operation *operation,
                                 const struct zse_step *step, int num_threads) {
    (void)operation;
    (void)num_threads;
    return count_row_pieces(step->rows);
}

static void run_down_piece(const struct zse_operation *operation, const struct zse_step *step,
                           int64_t piece, struct zse_worker *worker) {
    (void)worker;
    int64_t columns = operation->matrix->columns, each = products_a_row(operation);
    struct row_range rows = rows_of_piece(step->rows, piece);
    for (int64_t product = rows.first * each; product < rows.end * each; product++) {
        struct adapted one = adapted_of(operation, step, product);
        if (!one.adaptation) continue;
        const float *input = step->registers[operation->input] + one.input * columns;
        float *output = step->registers[operation->output] + product * operation->width;
        for (int64_t index = 0; index < one.adaptation->num_parts; index++) {
            const struct zse_low_rank *part = one.adaptation->parts + index;
            for (int64_t i = 0; i < part->rank; i++)
                *output++ = part->scale * dot(input, part->down + i * columns, columns);
        }
    }
}

const struct zse_kernel zse_adapt_down = {count_down_pieces, run_down_piece};

/* sums += factors[0] * lines[0] + factors[1] * lines[1] ..., in this order. */
ALWAYS_INLINE void add_lines(const float *lines, int64_t stride, const float *factors,
                             int64_t num_lines, int64_t count, float *sums) {
    for (int64_t at = 0; at < count; at += VECTOR_LANES) {
        vfloat sum = vload_some(sums + at, count - at);
        for (int64_t i = 0; i < num_lines; i++)
            sum += vload_some(lines + i * stride + at, count - at) * vbroadcast(factors[i]);
        vstore_some(sums + at, sum, count - at);
    }
}

/* Columns first .. end of a row of the product, as far as a part reaches. The second matrix is read
 * line by line, as it lies; sums wait in the nearest cache. */
static void add_part(const struct zse_low_rank *part, const float *reduced, float scale,
                     int64_t first, int64_t end, float *output) {
    float sums[COLUMNS_A_PIECE] __attribute__((aligned(64)));
    int64_t begin = first > part->first_row ? first : part->first_row;
    int64_t behind = part->first_row + part->rows;
    if (behind > end) behind = end;
    int64_t count = behind - begin;
    if (count <= 0) return;
    memset(sums, 0, (size_t)count * sizeof *sums);
    for (int64_t i = 0; i < part->rank; i += LINES_AT_ONCE) {
        const float *up = part->up + i * part->rows + (begin - part->first_row);
        int64_t lines = part->rank - i;
        if (lines >= LINES_AT_ONCE)
            add_lines(up, part->rows, reduced + i, LINES_AT_ONCE, count, sums);
        else
            add_lines(up, part->rows, reduced + i, lines, count, sums);
    }
    for (int64_t at = 0; at < count; at += VECTOR_LANES) {
        vfloat sum = vload_some(output + begin + at, count - at) +
                     vload_some(sums + at, count - at) * vbroadcast(scale);
        vstore_some(output + begin + at, sum, count - at);
    }
}

static int64_t count_parts_of_row(const struct zse_operation *operation) {
    return (rows_of_matrix(operation) + COLUMNS_A_PIECE - 1) / COLUMNS_A_PIECE;
}

static int64_t count_up_pieces(const struct zse_operation *operation, const struct zse_step *step,
                               int num_threads) {
    (void)num_threads;
    return count_row_pieces(step->rows) * count_parts_of_row(operation);
}

static void run_up_piece(const struct zse_operation *operation, const struct zse_step *step,
                         int64_t piece, struct zse_worker *worker) {
    (void)worker;
    int64_t columns = rows_of_matrix(operation), parts_of_row = count_parts_of_row(operation);
    int64_t each = products_a_row(operation);
    int64_t first = piece % parts_of_row * COLUMNS_A_PIECE, end = first + COLUMNS_A_PIECE;
    if (end > columns) end = columns;
    struct row_range rows = rows_of_piece(step->rows, piece / parts_of_row);
    for (int64_t product = rows.first * each; product < rows.end * each; product++) {
        struct adapted one = adapted_of(operation, step, product);
        if (!one.adaptation) continue;
        const float *reduced = step->registers[operation->input] + product * operation->width;
        float *output = step->registers[operation->output] + one.output * columns;
        for (int64_t index = 0; index < one.adaptation->num_parts; index++) {
            const struct zse_low_rank *part = one.adaptation->parts + index;
            add_part(part, reduced, operation->scale, first, end, output);
            reduced += part->rank;
        }
    }
}

const struct zse_kernel zse_adapt_up = {count_up_pieces, run_up_piece};
