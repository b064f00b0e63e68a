/* Runs whole steps of random small models: what sanitizers, other processors and other numbers of
 * threads are compared by.
 *
 *   kernels_driver THREADS CASES SEED
 *
 * Every array has its own memory of exactly its length, so that a sanitizer sees a look beyond its
 * end. Prints a line of what each case is, then its tokens and logits as hexadecimal numbers.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zse.h"

#define MOST_ROWS 40
#define MOST_ARRAYS 128
#define BLOCK_SIZE 16
#define NUM_BLOCKS 24

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
    struct zse_matrix embedding, qkv, output, up, down, head;
};

static int64_t bytes_of(const struct zse_matrix *matrix)
{
    static const int halves[] = {8, 4, 4, 2, 1, 1};
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
}

static void choose_model(struct model *model)
{
    choose_scheme(model);
    choose_attention(model);
    const int64_t heads = model->attention.num_heads, keys = model->attention.num_kv_heads;
    const int64_t head_dim = model->attention.head_dim;
    model->hidden = model->group ? model->group * (1 + below(3)) : 1 + below(300);
    model->intermediate = model->group ? model->group * (1 + below(5)) : 1 + below(400);
    model->vocabulary = 2 + below(700);
    model->cache_dtype = (int32_t)below(4);
    model->activation = (int32_t)below(4);
    model->norm = random_norm(model->hidden);
    model->rope.frequencies = floats(model->attention.rotary_dim / 2, 0.3f, 0.2f);
    model->rope.rotary_dim = model->attention.rotary_dim;
    model->rope.factor = 1.0f;
    model->embedding = random_matrix(model, model->vocabulary, model->hidden);
    model->qkv = random_matrix(model, (heads + 2 * keys) * head_dim, model->hidden);
    model->output = random_matrix(model, model->hidden, heads * head_dim);
    model->up = random_matrix(model, 2 * model->intermediate, model->hidden);
    model->down = random_matrix(model, model->hidden, model->intermediate);
    model->head = random_matrix(model, model->vocabulary, model->hidden);
}

static int64_t record(const struct model *model, struct zse_operation *operations)
{
    const int32_t quantizes = model->quantizes, hidden = (int32_t)model->hidden;
    const int32_t mixed = model->attention.num_heads * model->attention.head_dim;
    const struct zse_operation all[] = {
        {.kind = ZSE_OP_ROTARY, .output = ZSE_ROTARY, .rope = &model->rope},
        {.kind = ZSE_OP_EMBED, .output = ZSE_RESIDUAL, .matrix = &model->embedding},
        {.kind = ZSE_OP_NORM, .output = ZSE_NORMED, .norm = &model->norm, .width = hidden,
         .quantizes = quantizes},
        {.kind = ZSE_OP_MULTIPLY, .input = ZSE_NORMED, .output = ZSE_QKV, .matrix = &model->qkv,
         .quantizes = quantizes},
        {.kind = ZSE_OP_ROPE_STORE, .attention = &model->attention},
        {.kind = ZSE_OP_ATTEND, .attention = &model->attention},
        {.kind = quantizes ? ZSE_OP_QUANTIZE : ZSE_OP_ADD, .input = ZSE_MIXED,
         .output = ZSE_ADDED, .width = quantizes ? mixed : 0, .quantizes = quantizes},
        {.kind = ZSE_OP_MULTIPLY, .input = ZSE_MIXED, .output = ZSE_ADDED,
         .matrix = &model->output, .quantizes = quantizes},
        {.kind = ZSE_OP_ADD, .input = ZSE_ADDED, .output = ZSE_RESIDUAL, .width = hidden,
         .scale = 0.5f},
        {.kind = ZSE_OP_NORM, .output = ZSE_NORMED, .norm = &model->norm, .width = hidden,
         .quantizes = quantizes},
        {.kind = ZSE_OP_MULTIPLY, .input = ZSE_NORMED, .output = ZSE_JOINED, .matrix = &model->up,
         .quantizes = quantizes},
        {.kind = ZSE_OP_ACTIVATE, .input = ZSE_JOINED, .output = ZSE_HIDDEN, .is_gated = 1,
         .activation = model->activation, .width = 2 * (int32_t)model->intermediate,
         .quantizes = quantizes},
        {.kind = ZSE_OP_MULTIPLY_ADD, .input = ZSE_HIDDEN, .output = ZSE_RESIDUAL,
         .matrix = &model->down, .quantizes = quantizes},
        {.kind = ZSE_OP_NORM, .output = ZSE_NORMED, .norm = &model->norm, .width = hidden,
         .quantizes = quantizes, .of_wanted = 1},
        {.kind = ZSE_OP_MULTIPLY, .input = ZSE_NORMED, .output = ZSE_LOGITS,
         .matrix = &model->head, .quantizes = quantizes, .of_wanted = 1},
        {.kind = ZSE_OP_SAMPLE, .input = ZSE_LOGITS, .width = (int32_t)model->vocabulary},
    };
    const int64_t count = sizeof all / sizeof all[0];
    for (int64_t index = 0; index < count; index++) {
        operations[index] = all[index];
        if (operations[index].scale == 0.0f) {
            operations[index].scale = 1.0f;
        }
    }
    return count;
}

/* --- a step ----------------------------------------------------------------------------------- */

/* Keys and values of positions that are there already, in a cache of any type. */
static struct zse_cache random_cache(const struct model *model)
{
    static const int64_t widths[] = {4, 2, 2, 1};
    struct zse_cache cache = {.block_size = BLOCK_SIZE, .dtype = model->cache_dtype};
    const int64_t slots = 2 * model->attention.num_kv_heads;
    const int64_t count = BLOCK_SIZE * slots * model->attention.head_dim;
    cache.block_bytes = count * widths[cache.dtype];
    if (cache.dtype == ZSE_CACHE_INT8) {
        cache.block_bytes += BLOCK_SIZE * slots * (int64_t)sizeof(float);
    }
    cache.data = array_of(NUM_BLOCKS * cache.block_bytes, 1);
    return cache;
}

/* One row each of some sequences, then a prompt; the blocks of each lie apart from each other. */
static void choose_rows(struct zse_step *step, int64_t vocabulary)
{
    const int64_t num_single = below(4), num_prompt = below(3) ? 0 : 2 + below(MOST_ROWS - 4);
    step->num_chunks = num_single + (num_prompt > 0);
    step->rows = num_single + num_prompt;
    if (!step->rows) {
        step->num_chunks = step->rows = 1;
    }
    step->single_rows = num_prompt ? num_single : step->rows;
    struct zse_rows *chunks = array_of(step->num_chunks, sizeof *chunks);
    int32_t *tokens = array_of(step->rows, 4), *positions = array_of(step->rows, 4);
    int32_t *slots = array_of(step->rows, 4);
    int32_t next_block = 0;
    for (int64_t chunk = 0, row = 0; chunk < step->num_chunks; chunk++) {
        const int is_prompt = num_prompt && chunk == num_single;
        struct zse_rows *rows = &chunks[chunk];
        rows->first_row = (int32_t)row;
        rows->num_rows = is_prompt ? (int32_t)num_prompt : 1;
        rows->start_position = (int32_t)below(is_prompt ? 20 : 4 * BLOCK_SIZE);
        const int64_t num_blocks = (rows->start_position + rows->num_rows - 1) / BLOCK_SIZE + 1;
        int32_t *blocks = array_of(num_blocks, 4);
        for (int64_t index = 0; index < num_blocks; index++) {
            blocks[index] = (NUM_BLOCKS - 1 - next_block++) % NUM_BLOCKS;
        }
        rows->blocks = blocks;
        for (int32_t index = 0; index < rows->num_rows; index++, row++) {
            const int32_t position = rows->start_position + index;
            tokens[row] = (int32_t)below(vocabulary);
            positions[row] = position;
            slots[row] = blocks[position / BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE;
        }
    }
    step->chunks = chunks;
    step->tokens = tokens;
    step->positions = positions;
    step->slots = slots;
}

static void choose_sampling(struct zse_step *step, int64_t vocabulary)
{
    int32_t *wanted = array_of(step->num_chunks, 4);
    struct zse_sampling *sampling = array_of(step->num_chunks, sizeof *sampling);
    for (int64_t index = 0; index < step->num_chunks; index++) {
        const struct zse_rows *rows = &step->chunks[index];
        struct zse_sampling *one = &sampling[index];
        wanted[index] = rows->first_row + rows->num_rows - 1;
        one->known_token = -1;
        one->temperature = below(2) ? 0.0f : 0.8f;
        one->top_p = below(2) ? 1.0f : 0.9f;
        one->top_k = (int32_t)below(3) * 20;
        one->draw = (double)below(1000) / 1000.0;
        one->num_logprobs = (int32_t)(below(vocabulary < 6 ? vocabulary : 6)) - 1;
        const int64_t room = one->num_logprobs > 0 ? one->num_logprobs : 0;
        one->top_tokens = array_of(room + 1, 4);
        one->top_logprobs = array_of(room + 1, 4);
    }
    step->num_wanted = step->num_chunks;
    step->wanted = wanted;
    step->sampling = sampling;
}

static void lay_out(struct zse_step *step, const struct model *model)
{
    const struct zse_attention *attention = &model->attention;
    const int64_t mixed = (int64_t)attention->num_heads * attention->head_dim;
    const int64_t slots = attention->num_heads + 2 * attention->num_kv_heads;
    const int64_t partial = ZSE_ATTENTION_PARTS * attention->num_heads * (attention->head_dim + 2);
    const int64_t counts[ZSE_NUM_REGISTERS] = {
        [ZSE_RESIDUAL] = step->rows * model->hidden,
        [ZSE_QKV] = step->rows * slots * attention->head_dim,
        [ZSE_MIXED] = step->rows * mixed,
        [ZSE_JOINED] = step->rows * 2 * model->intermediate,
        [ZSE_HIDDEN] = step->rows * model->intermediate,
        [ZSE_ADDED] = step->rows * model->hidden,
        [ZSE_NORMED] = step->rows * model->hidden,
        [ZSE_LOGITS] = step->num_wanted * model->vocabulary,
        [ZSE_ROTARY] = step->rows * attention->rotary_dim,
        [ZSE_PARTIAL] = step->num_chunks * partial,
        [ZSE_ARRIVED] = step->num_chunks * attention->num_kv_heads,
    };
    for (int index = 0; index < ZSE_NUM_REGISTERS; index++) {
        step->registers[index] = counts[index] ? array_of(counts[index], sizeof(float)) : NULL;
    }
    int64_t widest = model->hidden > model->intermediate ? model->hidden : model->intermediate;
    widest = mixed > widest ? mixed : widest;
    struct zse_quantized *quantized = &step->quantized;
    quantized->stride = (widest + 127) / 128 * 128;
    quantized->codes = array_of(step->rows * quantized->stride, 1);
    quantized->scales = array_of(step->rows * quantized->stride / 32, sizeof(float));
    quantized->sums = array_of(step->rows * quantized->stride / 32, sizeof(float));
}

static void print_answers(const struct zse_step *step, const struct model *model)
{
    for (int64_t index = 0; index < step->num_wanted; index++) {
        const struct zse_sampling *sampling = &step->sampling[index];
        printf("token %d %a\n", (int)sampling->token, (double)sampling->logprob);
        for (int64_t token = 0; token < model->vocabulary; token++) {
            printf("%a ", (double)step->registers[ZSE_LOGITS][index * model->vocabulary + token]);
        }
        puts("");
    }
}

static void run_case(struct zse_pool *pool, int index)
{
    struct model model = {0};
    struct zse_step step = {0};
    struct zse_operation operations[32];
    choose_model(&model);
    struct zse_cache cache = random_cache(&model);
    step.caches = &cache;
    choose_rows(&step, model.vocabulary);
    choose_sampling(&step, model.vocabulary);
    lay_out(&step, &model);
    printf("case %d scheme %d group %d hidden %d heads %d/%d x %d cache %d rows %d/%d\n", index,
           model.scheme, model.group, (int)model.hidden, model.attention.num_heads,
           model.attention.num_kv_heads, model.attention.head_dim, model.cache_dtype,
           (int)step.single_rows, (int)step.rows);
    zse_run(pool, operations, record(&model, operations), &step);
    print_answers(&step, &model);
    free_arrays();
}

int main(int num_arguments, char **arguments)
{
    if (num_arguments != 4) {
        return 2;
    }
    struct zse_pool *pool = zse_pool_start(atoi(arguments[1]), 50000);
    random_state = 0x9e3779b97f4a7c15u + (uint64_t)atol(arguments[3]);
    for (int index = 0; index < atoi(arguments[2]); index++) {
        run_case(pool, index);
    }
    zse_pool_stop(pool);
    return 0;
}
