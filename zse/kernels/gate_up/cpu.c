/* The MLP's activation of gate times up, or of up alone, quantized where int8 matrices read it. */
#include "../native/share.h"
#include "../native/vector_math.h"

/* A multiple of every group. A single row falls into pieces of so many columns. */
#define COLUMNS_A_PIECE 1024

static int64_t output_width(const struct zse_operation *operation) {
    return operation->is_gated ? operation->width / 2 : operation->width;
}

static int64_t column_pieces(const struct zse_operation *operation) {
    return (output_width(operation) + COLUMNS_A_PIECE - 1) / COLUMNS_A_PIECE;
}

static int64_t count_pieces(const struct zse_operation *operation, const struct zse_step *step,
                            int num_threads) {
    (void)num_threads;
    return rows_of_operation(operation, step) * column_pieces(operation);
}

ALWAYS_INLINE vfloat activate(vfloat x, int32_t activation) {
    switch (activation) {
        case ZSE_SILU:
            return x / (1.0f + vexp(-x));
        case ZSE_GELU:
            return 0.5f * x * verfc(x * -0.70710678118654752440f);
        case ZSE_GELU_TANH: {
            vfloat inner = 0.79788456080286535588f * (x + 0.044715f * (x * x * x));
            return x / (1.0f + vexp(-2.0f * inner)); /* (1 + tanh(a)) / 2 = 1 / (1 + e^-2a) */
        }
        case ZSE_TANH:
            return vtanh(x);
        default: {
            vfloat positive = vselect(x > 0.0f, x, (vfloat){0});
            return positive * positive;
        }
    }
}

/* output[i] = activation(gate[i]) * up[i]; without `up`, activation(gate[i]). */
ALWAYS_INLINE void activate_columns(const float *gate, const float *up, int64_t count,
                                    int32_t activation, float *output) {
    for (int64_t column = 0; column < count; column += VECTOR_LANES) {
        int64_t left = count - column;
        vfloat values = activate(vload_some(gate + column, left), activation);
        if (up != NULL) values *= vload_some(up + column, left);
        vstore_some(output + column, values, left);
    }
}

/* output[i] = gate[i] * sigmoid(1.702 * gate[i]) * (up[i] + 1), gate and up bounded by the limit. */
ALWAYS_INLINE void activate_bounded(const float *gate, const float *up, int64_t count, float limit,
                                    float *output) {
    vfloat most = vbroadcast(limit), least = -most;
    for (int64_t column = 0; column < count; column += VECTOR_LANES) {
        int64_t left = count - column;
        vfloat gates = vload_some(gate + column, left), ups = vload_some(up + column, left);
        gates = vselect(gates > most, most, gates);
        ups = vselect(ups > most, most, ups);
        ups = vselect(ups < least, least, ups) + 1.0f;
        vstore_some(output + column, gates / (1.0f + vexp(-1.702f * gates)) * ups, left);
    }
}

static void run_piece(const struct zse_operation *operation, const struct zse_step *step,
                      int64_t piece, struct zse_worker *worker) {
    (void)worker;
    int64_t width = output_width(operation), pieces = column_pieces(operation);
    int64_t row = piece / pieces, first = piece % pieces * COLUMNS_A_PIECE;
    int64_t count = width - first < COLUMNS_A_PIECE ? width - first : COLUMNS_A_PIECE;
    const float *gate = step->registers[operation->input] + row * operation->width + first;
    const float *up = operation->is_gated ? gate + width : NULL;
    float *output = step->registers[operation->output] + row * width;
    switch (operation->activation) { /* a loop of its own for each, without a choice inside */
        case ZSE_SILU:
            activate_columns(gate, up, count, ZSE_SILU, output + first);
            break;
        case ZSE_GELU:
            activate_columns(gate, up, count, ZSE_GELU, output + first);
            break;
        case ZSE_GELU_TANH:
            activate_columns(gate, up, count, ZSE_GELU_TANH, output + first);
            break;
        case ZSE_TANH:
            activate_columns(gate, up, count, ZSE_TANH, output + first);
            break;
        case ZSE_SWIGLU_OAI:
            activate_bounded(gate, up, count, operation->limit, output + first);
            break;
        default:
            activate_columns(gate, up, count, ZSE_RELU2, output + first);
    }
    if (operation->quantizes)
        zse_quantize_columns(output, row, first, count, operation->quantizes,
                             quantized_of_operation(operation, step));
}

const struct zse_kernel zse_activate = {count_pieces, run_piece};

static int64_t count_told_pieces(const struct zse_operation *operation,
                                 const struct zse_step *step, int num_threads) {
    (void)num_threads;
    return count_row_pieces(rows_of_operation(operation, step));
}

static void run_told_piece(const struct zse_operation *operation, const struct zse_step *step,
                           int64_t piece, struct zse_worker *worker) {
    (void)worker;
    int64_t width = operation->width, stride = operation->matrix->rows;
    struct row_range rows = rows_of_piece(rows_of_operation(operation, step), piece);
    for (int64_t row = rows.first; row < rows.end; row++) {
        const float *told = step->registers[ZSE_TOLD] + row * stride + operation->layer * width;
        float *output = step->registers[operation->output] + row * width;
        for (int64_t column = 0; column < width; column += VECTOR_LANES) {
            int64_t left = width - column;
            vfloat product = vload_some(output + column, left) * vload_some(told + column, left);
            vstore_some(output + column, product, left);
        }
        if (operation->quantizes)
            zse_quantize_columns(output, row, 0, width, operation->quantizes, &step->quantized);
    }
}

const struct zse_kernel zse_tell = {count_told_pieces, run_told_piece};
