/* Linear attention by the gated delta rule: a convolution over time, then a state for each head. */
#include <math.h>

#include "../native/row_norm.h"
#include "../native/vector_math.h"

/* Channels that a piece convolves: a few cache lines of each row. */
#define CHANNELS_A_PIECE 256
/* Columns of a state that are kept near while its rows pass twice: 128 rows of them are 16 KB. */
#define STATE_VECTORS 4
#define L2_EPSILON 1e-6f

ALWAYS_INLINE int64_t channels_of(const struct zse_delta *delta) {
    return 2 * delta->num_key_heads * delta->key_dim + delta->num_value_heads * delta->value_dim;
}

ALWAYS_INLINE int64_t columns_of(const struct zse_delta *delta) {
    return channels_of(delta) + delta->num_value_heads * delta->value_dim;
}

/* Rows that take a state of another slot on follow the rows that left it there: drafts, each of which
 * leaves a state of its own. One piece goes through all of them in order. */
ALWAYS_INLINE int follows(const struct zse_step *step, int64_t index) {
    const struct zse_rows *chunk = step->chunks + index;
    return index > 0 && chunk->state_from != chunk->state_slot &&
           chunk->state_from == chunk[-1].state_slot;
}

static int64_t count_convolution_pieces(const struct zse_operation *operation,
                                        const struct zse_step *step, int num_threads) {
    (void)num_threads;
    int64_t blocks = (channels_of(operation->delta) + CHANNELS_A_PIECE - 1) / CHANNELS_A_PIECE;
    return step->num_chunks * blocks;
}

/* Convolve one vector of channels over a chunk's rows, in place. The ring has a line for each of
 * the last tokens, that of position p in line p % taps; lines before position 0 count as zeros. */
ALWAYS_INLINE void convolve_vector(const struct zse_delta *delta, const struct zse_rows *chunk,
                                   float *rows, const float *from, float *ring, int64_t channel,
                                   int64_t left) {
    int64_t taps = delta->convolution_width, channels = channels_of(delta);
    int64_t start = chunk->start_position;
    vfloat weights[ZSE_MAX_TAPS], past[ZSE_MAX_TAPS];
    for (int64_t tap = 0; tap < taps; tap++) {
        float numbers[VECTOR_LANES] = {0};
        for (int64_t lane = 0; lane < VECTOR_LANES && lane < left; lane++)
            numbers[lane] = delta->convolution[(channel + lane) * taps + tap];
        weights[tap] = vload(numbers);
        int64_t position = start - taps + tap;
        past[tap] = position < 0 ? vbroadcast(0.0f)
                                 : vload_some(from + position % taps * channels + channel, left);
    }
    for (int64_t row = 0; row < chunk->num_rows; row++) {
        float *place = rows + row * columns_of(delta) + channel;
        for (int64_t tap = 0; tap + 1 < taps; tap++) past[tap] = past[tap + 1];
        past[taps - 1] = vload_some(place, left);
        vfloat total = {0};
        for (int64_t tap = 0; tap < taps; tap++) total += past[tap] * weights[tap];
        vstore_some(place, total * vsigmoid(total), left);
    }
    int64_t end = start + chunk->num_rows;
    for (int64_t tap = 0; tap < taps; tap++) {
        int64_t position = end - taps + tap;
        if (position < 0) continue;
        vstore_some(ring + position % taps * channels + channel, past[tap], left);
    }
}

static void run_convolution_piece(const struct zse_operation *operation,
                                  const struct zse_step *step, int64_t piece,
                                  struct zse_worker *worker) {
    (void)worker;
    const struct zse_delta *delta = operation->delta;
    int64_t channels = channels_of(delta);
    float *rings = step->states[operation->layer].rings;
    int64_t ring = delta->convolution_width * channels, index = piece % step->num_chunks;
    int64_t first = piece / step->num_chunks * CHANNELS_A_PIECE, end = first + CHANNELS_A_PIECE;
    end = end < channels ? end : channels;
    if (follows(step, index)) return;
    do {
        const struct zse_rows *chunk = step->chunks + index;
        float *rows = step->registers[operation->output] + chunk->first_row * columns_of(delta);
        for (int64_t channel = first; channel < end; channel += VECTOR_LANES)
            convolve_vector(delta, chunk, rows, rings + chunk->state_from * ring,
                            rings + chunk->state_slot * ring, channel, end - channel);
    } while (++index < step->num_chunks && follows(step, index));
}

const struct zse_kernel zse_convolve = {count_convolution_pieces, run_convolution_piece};

/* state = decay * state + key (beta * (value - decay * state^T key))^T; output = state^T query. */
ALWAYS_INLINE void move_columns(const float *from, float *state, int64_t stride, int64_t key_dim, const float *query,
                                const float *key, const float *value, float decay, float beta,
                                float *output, int64_t left) {
    vfloat known[STATE_VECTORS] = {{0}}, sums[STATE_VECTORS] = {{0}};
    for (int64_t row = 0; row < key_dim; row++)
        for (int part = 0; part < STATE_VECTORS; part++) {
            int64_t column = part * VECTOR_LANES;
            if (column < left)
                known[part] += key[row] * vload_some(from + row * stride + column, left - column);
        }
    for (int part = 0; part < STATE_VECTORS; part++) {
        int64_t column = part * VECTOR_LANES;
        if (column < left)
            known[part] =
                beta * (vload_some(value + column, left - column) - decay * known[part]);
    }
    for (int64_t row = 0; row < key_dim; row++)
        for (int part = 0; part < STATE_VECTORS; part++) {
            int64_t column = part * VECTOR_LANES;
            if (column >= left) continue;
            int64_t place = row * stride + column;
            vfloat moved =
                decay * vload_some(from + place, left - column) + key[row] * known[part];
            vstore_some(state + place, moved, left - column);
            sums[part] += query[row] * moved;
        }
    for (int part = 0; part < STATE_VECTORS; part++) {
        int64_t column = part * VECTOR_LANES;
        if (column < left) vstore_some(output + column, sums[part], left - column);
    }
}

/* output = scale * row / |row|. */
ALWAYS_INLINE void make_unit(const float *row, int64_t width, float scale, float *output) {
    float factor = scale / sqrtf(sum_of_powers(row, width, 0.0f, 2) + L2_EPSILON);
    for (int64_t column = 0; column < width; column += VECTOR_LANES)
        vstore_some(output + column, vload_some(row + column, width - column) * factor,
                    width - column);
}

static int64_t count_state_pieces(const struct zse_operation *operation,
                                  const struct zse_step *step, int num_threads) {
    (void)num_threads;
    return step->num_chunks * operation->delta->num_value_heads;
}

/* One head of one row: what it reads lies in `row`, its steps and decays in `gates`. */
static void move_head(const struct zse_delta *delta, int64_t head, const float *row,
                      const float *gates, const float *from, float *state, float *output,
                      float *scratch) {
    int64_t key_dim = delta->key_dim, value_dim = delta->value_dim, heads = delta->num_value_heads;
    int64_t key_columns = delta->num_key_heads * key_dim;
    int64_t key_head = head / (heads / delta->num_key_heads);
    float *query = scratch, *key = scratch + key_dim;
    make_unit(row + key_head * key_dim, key_dim, 1.0f / sqrtf((float)key_dim), query);
    make_unit(row + key_columns + key_head * key_dim, key_dim, 1.0f, key);
    const float *value = row + 2 * key_columns + head * value_dim;
    float shifted = gates[heads + head] + delta->step_bias[head];
    float softplus = fmaxf(shifted, 0.0f) + log1pf(expf(-fabsf(shifted)));
    float decay = expf(-expf(delta->decay[head]) * softplus);
    float beta = 1.0f / (1.0f + expf(-gates[head]));
    for (int64_t column = 0; column < value_dim; column += STATE_VECTORS * VECTOR_LANES)
        move_columns(from + column, state + column, value_dim, key_dim, query, key, value + column,
                     decay, beta, output + column, value_dim - column);
    normalize_row(output, value_dim, delta->norm, 1.0f, output);
    const float *gate = row + channels_of(delta) + head * value_dim;
    for (int64_t column = 0; column < value_dim; column += VECTOR_LANES) {
        int64_t left = value_dim - column;
        vfloat opened = vload_some(gate + column, left);
        opened *= vsigmoid(opened) * vload_some(output + column, left);
        vstore_some(output + column, opened, left);
    }
}

static void run_state_piece(const struct zse_operation *operation, const struct zse_step *step,
                            int64_t piece, struct zse_worker *worker) {
    const struct zse_delta *delta = operation->delta;
    int64_t heads = delta->num_value_heads, size = delta->key_dim * delta->value_dim;
    int64_t index = piece / heads, head = piece % heads;
    float *matrices = step->states[operation->layer].matrices;
    if (follows(step, index)) return;
    do {
        const struct zse_rows *chunk = step->chunks + index;
        float *state = matrices + (chunk->state_slot * heads + head) * size;
        const float *from = matrices + (chunk->state_from * heads + head) * size;
        if (chunk->start_position == 0) memset(state, 0, (size_t)size * sizeof(float));
        for (int64_t row = chunk->first_row; row < chunk->first_row + chunk->num_rows; row++) {
            const float *inputs = step->registers[operation->input] + row * columns_of(delta);
            const float *gates = step->registers[ZSE_DELTA_GATES] + row * 2 * heads;
            float *output =
                step->registers[operation->output] + (row * heads + head) * delta->value_dim;
            move_head(delta, head, inputs, gates, from, state, output, worker->scratch);
            from = state;
        }
    } while (++index < step->num_chunks && follows(step, index));
}

const struct zse_kernel zse_delta_rule = {count_state_pieces, run_state_piece};
