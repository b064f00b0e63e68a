/* Random small models for drivers: one layer of every kind that the kernels compute. */
#ifndef RANDOM_MODEL_H
#define RANDOM_MODEL_H

#include <stdlib.h>
#include <string.h>

#include "zse.h"

#define MOST_ARRAYS 192

/* --- memory and numbers ----------------------------------------------------------------------- */

static uint64_t random_state;
static void *arrays[MOST_ARRAYS];
static int num_arrays;

static uint64_t next_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state >> 11;
}

static int64_t below(int64_t end)
{
    return (int64_t)(next_random() % (uint64_t)end);
}

static void *array_of(int64_t count, int64_t size)
{
    const size_t num_bytes = (size_t)(count * size);
    void *memory = num_bytes % 64 ? malloc(num_bytes) : aligned_alloc(64, num_bytes);
    if (!memory || num_arrays == MOST_ARRAYS) {
        abort();
    }
    arrays[num_arrays++] = memory;
    return memset(memory, 0, num_bytes);
}

static void free_arrays(void)
{
    while (num_arrays) {
        free(arrays[--num_arrays]);
    }
}

static float *floats(int64_t count, float middle, float spread)
{
    float *numbers = array_of(count, sizeof *numbers);
    for (int64_t index = 0; index < count; index++) {
        numbers[index] = middle + spread * ((float)below(2001) - 1000.0f) / 1000.0f;
    }
    return numbers;
}

/* --- a model ---------------------------------------------------------------------------------- */

struct model {
    int32_t scheme;
    int32_t group;      /* of weights; 0 without */
    int32_t quantizes;  /* of activations */
    int64_t hidden;
    int64_t intermediate;
    int64_t vocabulary;
    int32_t cache_dtype;
    int32_t activation;
    struct zse_norm norm;
    struct zse_norm head_norm;
    struct zse_rope rope;
    struct zse_attention attention;
    struct zse_latent latent;
    struct zse_norm latent_norm, query_norm;
    struct zse_matrix expansion, query; /* of latents */
    struct zse_matrix embedding, qkv, output, up, down, head;
    int32_t has_experts;
    struct zse_experts experts;
    struct zse_matrix router, gate, expert_up, expert_down;
};

static int64_t bytes_of(const struct zse_matrix *matrix)
{
    static const int halves[] = {8, 4, 4, 2, 1, 1, 1};
    return matrix->rows * matrix->columns * halves[matrix->scheme] / 2;
}

/* A float16 from 1/64 to 1/32, and -8 times it. */
static uint16_t half_scale(void)
{
    return (uint16_t)(0x2400 + below(0x400));
}

static const void *random_scales(const struct zse_matrix *matrix)
{
    if (matrix->scheme == ZSE_INT8) {
        return floats(matrix->rows, 0.002f, 0.001f);
    }
    if (!matrix->group) {
        return NULL;
    }
    const int64_t count = matrix->rows * matrix->columns / matrix->group;
    if (matrix->scheme == ZSE_MXFP4) {
        uint8_t *exponents = array_of(count, sizeof *exponents);
        for (int64_t index = 0; index < count; index++) {
            exponents[index] = (uint8_t)(116 + below(8));
        }
        return exponents;
    }
    const int64_t words = matrix->scheme == ZSE_INT4 ? 2 : 1;
    uint16_t *scales = array_of(count * words, sizeof *scales);
    for (int64_t index = 0; index < count; index++) {
        const uint16_t scale = half_scale();
        scales[index * words] = scale;
        if (words == 2) {
            scales[index * 2 + 1] = (uint16_t)(0x8000 | (scale + 0x0c00));
        }
    }
    return scales;
}

static const void *random_numbers(const struct zse_matrix *matrix)
{
    const int64_t count = matrix->rows * matrix->columns;
    if (matrix->scheme == ZSE_FP32) {
        return floats(count, 0.0f, 0.2f);
    }
    uint8_t *bytes = array_of(bytes_of(matrix), 1);
    uint16_t *halves = (uint16_t *)(void *)bytes;
    for (int64_t index = 0; index < bytes_of(matrix); index++) {
        bytes[index] = (uint8_t)below(256);
        if (matrix->scheme == ZSE_INT8 && bytes[index] == 0x80) {
            bytes[index] = 0; /* codes are -127 to 127 */
        }
    }
    for (int64_t index = 0; index < count && matrix->scheme == ZSE_FP16; index++) {
        halves[index] = (uint16_t)(below(2) << 15 | (0x2c00 + below(0x400)));
    }
    for (int64_t index = 0; index < count && matrix->scheme == ZSE_BF16; index++) {
        halves[index] = (uint16_t)(below(2) << 15 | (0x3d80 + below(0x80)));
    }
    return bytes;
}

static struct zse_matrix random_matrix(const struct model *model, int64_t rows, int64_t columns)
{
    struct zse_matrix matrix = {.rows = rows, .columns = columns, .scheme = model->scheme,
                                .group = model->group};
    matrix.data = random_numbers(&matrix);
    matrix.scales = random_scales(&matrix);
    matrix.bias = below(2) ? floats(rows, 0.0f, 0.1f) : NULL;
    return matrix;
}

static struct zse_norm random_norm(int64_t width)
{
    struct zse_norm norm = {.weight = floats(width, 1.0f, 0.2f), .epsilon = 1e-5f};
    norm.subtracts_mean = (int32_t)below(2);
    norm.bias = norm.subtracts_mean ? floats(width, 0.0f, 0.1f) : NULL;
    return norm;
}

static void choose_scheme(struct model *model)
{
    static const int32_t groups[] = {32, 64, 128};
    model->scheme = (int32_t)below(7);
    const int is_grouped = model->scheme >= ZSE_INT4;
    const int num_groups = model->scheme == ZSE_MXFP4 ? 1 : 3;
    model->group = is_grouped ? groups[below(num_groups)] : 0;
    model->quantizes = is_grouped ? model->group : 0;
    if (model->scheme == ZSE_INT8) {
        model->quantizes = ZSE_ACTIVATION_GROUP;
    }
}

static void choose_attention(struct model *model)
{
    struct zse_attention *attention = &model->attention;
    const int32_t unit = model->group ? model->group : 2 * (int32_t)(4 + below(30));
    attention->num_kv_heads = (int32_t)(1 + below(3));
    attention->num_heads = attention->num_kv_heads * (int32_t)(1 + below(4));
    attention->head_dim = unit;
    attention->rotary_dim = below(3) ? unit : unit / 4 * 2;
    attention->window = below(2) ? 0 : (int32_t)(1 + below(50));
    attention->scale = 0.2f;
    attention->softcap = below(2) ? 0.0f : 20.0f;
    attention->rotary = ZSE_ROTARY;
    model->head_norm = random_norm(unit);
    attention->q_norm = attention->k_norm = below(2) ? &model->head_norm : NULL;
    attention->sinks = below(2) ? NULL : floats(attention->num_heads, 0.0f, 1.0f);
    attention->value_epsilon = below(3) ? 0.0f : 1e-6f;
    attention->is_gated = below(3) == 0;
    attention->values_are_keys = below(4) == 0;
    attention->sees_all = below(4) == 0;
    if (attention->sees_all) { /* what whole texts have not */
        attention->value_epsilon = 0.0f;
        attention->values_are_keys = 0;
    }
}

/* One key that all heads share, whose first columns are the values that are summed up. */
static void choose_latent(struct model *model)
{
    struct zse_attention *attention = &model->attention;
    struct zse_latent *latent = &model->latent;
    const int32_t unit = attention->head_dim, turning = 2 * (int32_t)(1 + below(16));
    const int32_t query_rank = model->group ? model->group : (int32_t)(1 + below(60));
    latent->rank = (int32_t)(1 + below(200));
    latent->key_dim = (int32_t)(1 + below(40));
    latent->value_dim = unit;
    attention->latent = latent;
    attention->num_kv_heads = 1;
    attention->head_dim = latent->rank + turning;
    attention->rotary_dim = turning;
    attention->q_norm = attention->k_norm = NULL;
    attention->value_epsilon = 0.0f;
    attention->is_gated = attention->values_are_keys = attention->sees_all = 0;
    const int32_t num_heads = attention->num_heads;
    const struct model plain = {.scheme = (int32_t)below(3)};
    model->latent_norm = random_norm(latent->rank);
    latent->norm = &model->latent_norm;
    model->expansion = random_matrix(&plain, num_heads * (latent->key_dim + unit), latent->rank);
    latent->expansion = &model->expansion;
    latent->query_columns = num_heads * (latent->key_dim + turning);
    if (below(2)) {
        model->query = random_matrix(model, latent->query_columns, query_rank);
        model->query_norm = random_norm(query_rank);
        latent->query_norm = &model->query_norm;
        latent->query_columns = query_rank;
    }
}

/* Columns of what the matrix behind attention reads. */
static int64_t mixed_columns(const struct zse_attention *attention)
{
    const struct zse_latent *latent = attention->latent;
    return (int64_t)attention->num_heads * (latent ? latent->value_dim : attention->head_dim);
}

static int64_t qkv_columns(const struct zse_attention *attention)
{
    if (attention->latent) {
        return attention->latent->query_columns + attention->head_dim;
    }
    const int64_t of_queries = (attention->is_gated ? 2 : 1) * attention->num_heads;
    const int64_t of_keys = (attention->values_are_keys ? 1 : 2) * attention->num_kv_heads;
    return (of_queries + of_keys) * attention->head_dim;
}

/* Experts of the dense MLP's shape, groups among them. */
static void choose_experts(struct model *model)
{
    struct zse_experts *experts = &model->experts;
    experts->num_groups = (int32_t)(1 + below(3));
    experts->groups_per_token = (int32_t)(1 + below(experts->num_groups));
    experts->num_experts = experts->num_groups * (int32_t)(2 + below(5));
    experts->scores_in_group = (int32_t)(1 + below(2));
    const int32_t most = experts->num_experts / experts->num_groups * experts->groups_per_token;
    experts->experts_per_token = (int32_t)(1 + below(most));
    experts->scoring = (int32_t)below(3);
    experts->normalizes = (int32_t)below(2);
    experts->weight_scale = 1.5f;
    experts->selection_bias = below(2) ? floats(experts->num_experts, 0.0f, 0.1f) : NULL;
    experts->expert_scales = below(2) ? floats(experts->num_experts, 1.0f, 0.2f) : NULL;
    const struct model plain = {.scheme = ZSE_FP32};
    const int64_t hidden = model->hidden, stacked = experts->num_experts;
    model->router = random_matrix(&plain, stacked, hidden);
    model->gate = random_matrix(&plain, 1, hidden);
    model->expert_up = random_matrix(model, stacked * 2 * model->intermediate, hidden);
    model->expert_down = random_matrix(model, stacked * hidden, model->intermediate);
}

static void choose_model(struct model *model)
{
    choose_scheme(model);
    choose_attention(model);
    if (below(4) == 0) {
        choose_latent(model);
    }
    const int64_t mixed = mixed_columns(&model->attention);
    model->hidden = model->group ? model->group * (1 + below(3)) : 1 + below(300);
    model->intermediate = model->group ? model->group * (1 + below(5)) : 1 + below(400);
    model->vocabulary = 2 + below(700);
    model->cache_dtype = (int32_t)below(4);
    model->activation = (int32_t)below(5);
    model->norm = random_norm(model->hidden);
    model->rope.frequencies = floats(model->attention.rotary_dim / 2, 0.3f, 0.2f);
    model->rope.rotary_dim = model->attention.rotary_dim;
    model->rope.factor = 1.0f;
    model->embedding = random_matrix(model, model->vocabulary, model->hidden);
    model->qkv = random_matrix(model, qkv_columns(&model->attention), model->hidden);
    model->output = random_matrix(model, model->hidden, mixed);
    model->up = random_matrix(model, 2 * model->intermediate, model->hidden);
    model->down = random_matrix(model, model->hidden, model->intermediate);
    model->head = random_matrix(model, model->vocabulary, model->hidden);
    model->has_experts = (int32_t)below(2);
    if (model->has_experts) {
        choose_experts(model);
    }
}

#endif
