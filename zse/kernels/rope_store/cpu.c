/* Cosines and sines of positions; norms and rotation of heads; keys and values into the cache. */
#include "../native/kept.h"
#include "../native/qkv.h"
#include "../native/row_norm.h"
#include "../native/share.h"

/* --- cosines and sines ------------------------------------------------------------------------ */

/* pi / 2 in three parts; the first two end in zeros, so that a product with a quadrant is exact. */
#define HALF_PI_HIGH 1.57079632673412561417e+00
#define HALF_PI_MIDDLE 6.07710050630396597660e-11
#define HALF_PI_LOW 2.02226624879595063154e-21
#define TWO_OVER_PI 0.63661977236758134308

/* Cosine and sine times `factor` of an angle that is a float32; exact to that type's last bit. */
static inline void turn(float angle, float factor, float *cosine, float *sine) {
    double x = (double)angle, to_whole = 0x1.8p52;
    double shifted = x * TWO_OVER_PI + to_whole;
    double quadrants = shifted - to_whole;
    int64_t quadrant = (int64_t)quadrants;
    x = ((x - quadrants * HALF_PI_HIGH) - quadrants * HALF_PI_MIDDLE) - quadrants * HALF_PI_LOW;
    double square = x * x;
    double sines = -2.50521083854417187751e-8 + square * 1.60590438368216145994e-10;
    sines = -1.98412698412698412698e-4 + square * (2.75573192239858906526e-6 + square * sines);
    sines = -1.66666666666666666667e-1 + square * (8.33333333333333333333e-3 + square * sines);
    sines = x + x * square * sines;
    double cosines = 2.08767569878680989792e-9 - square * 1.14707455977297247139e-11;
    cosines = 2.48015873015873015873e-5 + square * (-2.75573192239858906526e-7 + square * cosines);
    cosines = 4.16666666666666666667e-2 + square * (-1.38888888888888888889e-3 + square * cosines);
    cosines = 1.0 + square * (-0.5 + square * cosines);
    double along = quadrant & 1 ? sines : cosines, across = quadrant & 1 ? cosines : sines;
    along = (quadrant + 1) & 2 ? -along : along;
    across = quadrant & 2 ? -across : across;
    *cosine = (float)along * factor;
    *sine = (float)across * factor;
}

static int64_t count_pieces(const struct zse_operation *operation, const struct zse_step *step,
                            int num_threads) {
    (void)num_threads;
    return count_row_pieces(rows_of_operation(operation, step));
}

static void run_rotary_piece(const struct zse_operation *operation, const struct zse_step *step,
                             int64_t piece, struct zse_worker *worker) {
    (void)worker;
    const struct zse_rope *rope = operation->rope;
    int32_t half = rope->rotary_dim / 2;
    struct row_range rows = rows_of_piece(step->rows, piece);
    for (int64_t row = rows.first; row < rows.end; row++) {
        float *cosines = step->registers[operation->output] + row * rope->rotary_dim;
        float position = (float)step->positions[row];
        for (int32_t i = 0; i < half; i++)
            turn(position * rope->frequencies[i], rope->factor, cosines + i, cosines + half + i);
    }
}

const struct zse_kernel zse_rotary = {count_pieces, run_rotary_piece};

/* --- rows ------------------------------------------------------------------------------------- */

/* Norm, if there is one: of each head, or of all heads as one vector. */
static inline void normalize_heads(const struct zse_attention *attention, int32_t num_heads,
                                   const struct zse_norm *norm, float *heads) {
    int64_t head_dim = attention->head_dim;
    if (norm == NULL) return;
    if (attention->norms_together) {
        normalize_row(heads, num_heads * head_dim, norm, 1.0f, heads);
        return;
    }
    for (int32_t head = 0; head < num_heads; head++)
        normalize_row(heads + head * head_dim, head_dim, norm, 1.0f, heads + head * head_dim);
}

static inline void rotate_heads(const struct zse_attention *attention, int32_t num_heads,
                                const float *rotary, float *heads) {
    for (int32_t head = 0; attention->rotary_dim && head < num_heads; head++)
        rotate_head(heads + (int64_t)head * attention->head_dim, rotary, attention->rotary_dim);
}

/* Queries times their keys' factors, after the rotation: the two of a pair have the same one. */
static inline void multiply_queries(const struct zse_attention *attention, float *queries) {
    int64_t head_dim = attention->head_dim;
    int64_t repeats = attention->num_heads / attention->num_kv_heads;
    for (int64_t head = 0; attention->key_factors && head < attention->num_heads; head++) {
        const float *factors = attention->key_factors + head / repeats * head_dim;
        for (int64_t i = 0; i < head_dim; i++) queries[head * head_dim + i] *= factors[i];
    }
}

/* Keys that lie side by side as all their factors do. */
static inline void divide_keys(const struct zse_attention *attention, float *keys) {
    int64_t columns = (int64_t)attention->num_kv_heads * attention->head_dim;
    for (int64_t i = 0; attention->key_factors && i < columns; i++)
        keys[i] /= attention->key_factors[i];
}

/* Queries or keys that are asked for in four bits, behind everything else. */
static inline void turn_heads(const struct zse_attention *attention, int32_t num_heads,
                              float *heads) {
    for (int32_t head = 0; attention->turns_keys && head < num_heads; head++)
        turn_head(heads + (int64_t)head * attention->head_dim, attention->head_dim);
}

/* Values, which may be keys as the matrix gave them, and may have a norm without weight. */
static inline void store_values(const struct zse_attention *attention,
                                const struct zse_cache *cache, const struct place *place,
                                const float *values) {
    int32_t head_dim = attention->head_dim;
    float normed[ZSE_MAX_HEAD_DIM];
    for (int32_t head = 0; head < attention->num_kv_heads; head++, values += head_dim) {
        const float *value = values;
        if (attention->value_epsilon > 0.0f) {
            normalize_plainly(values, head_dim, attention->value_epsilon, normed);
            value = normed;
        }
        store_head(cache, place, attention->num_kv_heads + head, value, head_dim);
    }
}

static void store_row(const struct zse_attention *attention, const struct zse_cache *cache,
                      int64_t slot, const float *rotary, float *row) {
    int32_t num_kv_heads = attention->num_kv_heads, head_dim = attention->head_dim;
    normalize_heads(attention, attention->num_heads, attention->q_norm, row);
    rotate_heads(attention, attention->num_heads, rotary, row);
    multiply_queries(attention, row);
    turn_heads(attention, attention->num_heads, row);
    if (attention->shares_keys) return;
    float *keys = row + first_key_column(attention);
    if (attention->sees_all) {
        normalize_heads(attention, num_kv_heads, attention->k_norm, keys);
        rotate_heads(attention, num_kv_heads, rotary, keys);
        return;
    }
    struct place place = {cache->data + slot / cache->block_size * cache->block_bytes,
                          slot % cache->block_size, kept_rows(attention)};
    int64_t values = attention->values_are_keys ? 0 : (int64_t)num_kv_heads * head_dim;
    store_values(attention, cache, &place, keys + values); /* before keys turn, as they may be them */
    normalize_heads(attention, num_kv_heads, attention->k_norm, keys);
    rotate_heads(attention, num_kv_heads, rotary, keys);
    divide_keys(attention, keys);
    turn_heads(attention, num_kv_heads, keys);
    for (int32_t head = 0; head < num_kv_heads; head++)
        store_head(cache, &place, head, keys + (int64_t)head * head_dim, head_dim);
}

static void run_store_piece(const struct zse_operation *operation, const struct zse_step *step,
                            int64_t piece, struct zse_worker *worker) {
    (void)worker;
    const struct zse_attention *attention = operation->attention;
    const struct zse_cache *cache = step->caches + operation->layer;
    const int32_t *slots = slots_of(step, cache);
    int64_t width = qkv_width(attention);
    struct row_range rows = rows_of_piece(step->rows, piece);
    for (int64_t row = rows.first; row < rows.end; row++) {
        const float *rotary = attention->rotary_dim ? step->registers[attention->rotary] +
                                                          row * attention->rotary_dim
                                                    : NULL;
        store_row(attention, cache, slots[row], rotary, step->registers[ZSE_QKV] + row * width);
    }
}

const struct zse_kernel zse_rope_store = {count_pieces, run_store_piece};
