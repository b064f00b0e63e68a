/* Runs whole steps of random small models: what sanitizers, other processors and other numbers of
 * threads are compared by.
 *
 *   kernels_driver THREADS CASES SEED
 *
 * Every array has its own memory of exactly its length, so that a sanitizer sees a look beyond its
 * end. Prints a line of what each case is, then its tokens and logits as hexadecimal numbers.
 */
#include <stdio.h>
#include <stdlib.h>

#include "random_model.h"

#define MOST_ROWS 40
#define BLOCK_SIZE 16
#define NUM_BLOCKS 24

/* --- a program ------------------------------------------------------------------------------- */

/* Operations as they are recorded one by one. */
struct program {
    struct zse_operation operations[40];
    int64_t count;
};

static void add(struct program *program, struct zse_operation operation)
{
    if (operation.scale == 0.0f) {
        operation.scale = 1.0f;
    }
    program->operations[program->count++] = operation;
}

static void record_latent(struct program *program, const struct model *model)
{
    const struct zse_attention *attention = &model->attention;
    const int has_latent = attention->latent->query_norm != NULL;
    const int32_t quantizes = model->quantizes;
    add(program, (struct zse_operation){.kind = ZSE_OP_LATENT_STORE, .input = ZSE_QKV,
        .output = ZSE_QUERY_LATENT, .attention = attention});
    if (has_latent && quantizes) {
        add(program, (struct zse_operation){.kind = ZSE_OP_QUANTIZE, .input = ZSE_QUERY_LATENT,
            .width = attention->latent->query_columns, .quantizes = quantizes});
    }
    if (has_latent) {
        add(program, (struct zse_operation){.kind = ZSE_OP_MULTIPLY, .input = ZSE_QUERY_LATENT,
            .output = ZSE_QUERIES, .matrix = &model->query, .quantizes = quantizes});
    }
    add(program, (struct zse_operation){.kind = ZSE_OP_ABSORB,
        .input = has_latent ? ZSE_QUERIES : ZSE_QKV, .output = ZSE_WIDE_QUERIES,
        .attention = attention});
    add(program, (struct zse_operation){.kind = ZSE_OP_ATTEND, .input = ZSE_WIDE_QUERIES,
        .output = ZSE_WIDE_MIXED, .attention = attention});
    add(program, (struct zse_operation){.kind = ZSE_OP_EXPAND, .input = ZSE_WIDE_MIXED,
        .output = ZSE_MIXED, .attention = attention});
}

static void record_attention(struct program *program, const struct model *model)
{
    const int32_t quantizes = model->quantizes, hidden = (int32_t)model->hidden;
    const struct zse_attention *attention = &model->attention;
    const int32_t mixed = (int32_t)mixed_columns(attention);
    add(program, (struct zse_operation){.kind = ZSE_OP_NORM, .output = ZSE_NORMED,
        .norm = &model->norm, .width = hidden, .quantizes = quantizes});
    add(program, (struct zse_operation){.kind = ZSE_OP_MULTIPLY, .input = ZSE_NORMED,
        .output = ZSE_QKV, .matrix = &model->qkv, .quantizes = quantizes});
    if (attention->latent) {
        record_latent(program, model);
    } else {
        add(program, (struct zse_operation){.kind = ZSE_OP_ROPE_STORE, .attention = attention});
        add(program, (struct zse_operation){.kind = ZSE_OP_ATTEND, .input = ZSE_QKV,
            .output = ZSE_MIXED, .attention = attention});
    }
    if (attention->is_gated) {
        add(program, (struct zse_operation){.kind = ZSE_OP_GATE, .output = ZSE_MIXED,
            .attention = attention, .quantizes = quantizes});
    } else if (quantizes) {
        add(program, (struct zse_operation){.kind = ZSE_OP_QUANTIZE, .input = ZSE_MIXED,
            .width = mixed, .quantizes = quantizes});
    }
    add(program, (struct zse_operation){.kind = ZSE_OP_MULTIPLY, .input = ZSE_MIXED,
        .output = ZSE_ADDED, .matrix = &model->output, .quantizes = quantizes});
    add(program, (struct zse_operation){.kind = ZSE_OP_ADD, .input = ZSE_ADDED,
        .output = ZSE_RESIDUAL, .width = hidden, .scale = 0.5f});
    add(program, (struct zse_operation){.kind = ZSE_OP_NORM, .output = ZSE_NORMED,
        .norm = &model->norm, .width = hidden, .quantizes = quantizes});
}

static struct zse_operation activation_of(const struct model *model)
{
    return (struct zse_operation){.kind = ZSE_OP_ACTIVATE, .input = ZSE_JOINED,
        .output = ZSE_HIDDEN, .is_gated = 1, .activation = model->activation, .limit = 0.7f,
        .width = 2 * (int32_t)model->intermediate, .quantizes = model->quantizes};
}

/* The dense MLP: added to the stream, or the expert of every token where there are others. */
static void record_dense(struct program *program, const struct model *model)
{
    const int32_t quantizes = model->quantizes;
    add(program, (struct zse_operation){.kind = ZSE_OP_MULTIPLY, .input = ZSE_NORMED,
        .output = ZSE_JOINED, .matrix = &model->up, .quantizes = quantizes});
    add(program, activation_of(model));
    add(program, (struct zse_operation){
        .kind = model->has_experts ? ZSE_OP_MULTIPLY : ZSE_OP_MULTIPLY_ADD, .input = ZSE_HIDDEN,
        .output = model->has_experts ? ZSE_SHARED : ZSE_RESIDUAL, .matrix = &model->down,
        .quantizes = quantizes});
}

static void record_experts(struct program *program, const struct model *model)
{
    const struct zse_experts *experts = &model->experts;
    const int32_t quantizes = model->quantizes, hidden = (int32_t)model->hidden;
    struct zse_operation activation = activation_of(model);
    activation.input = ZSE_CHOSEN_JOINED;
    activation.output = ZSE_CHOSEN_HIDDEN;
    activation.row_set = ZSE_CHOSEN_ROWS;
    activation.experts = experts;
    add(program, (struct zse_operation){.kind = ZSE_OP_MULTIPLY, .input = ZSE_NORMED,
        .output = ZSE_ROUTER, .matrix = &model->router});
    add(program, (struct zse_operation){.kind = ZSE_OP_MULTIPLY, .input = ZSE_NORMED,
        .output = ZSE_SHARED_GATE, .matrix = &model->gate});
    add(program, (struct zse_operation){.kind = ZSE_OP_ROUTE, .experts = experts});
    add(program, (struct zse_operation){.kind = ZSE_OP_SORT, .experts = experts});
    add(program, (struct zse_operation){.kind = ZSE_OP_GATHER, .input = ZSE_NORMED,
        .output = ZSE_CHOSEN, .width = hidden, .quantizes = quantizes, .experts = experts});
    add(program, (struct zse_operation){.kind = ZSE_OP_EXPERTS, .input = ZSE_CHOSEN,
        .output = ZSE_CHOSEN_JOINED, .matrix = &model->expert_up, .quantizes = quantizes,
        .experts = experts});
    add(program, activation);
    add(program, (struct zse_operation){.kind = ZSE_OP_EXPERTS, .input = ZSE_CHOSEN_HIDDEN,
        .output = ZSE_CHOSEN, .matrix = &model->expert_down, .quantizes = quantizes,
        .experts = experts});
    add(program, (struct zse_operation){.kind = ZSE_OP_COMBINE, .input = ZSE_CHOSEN,
        .output = ZSE_MIXTURE, .width = hidden, .experts = experts});
    record_dense(program, model);
    add(program, (struct zse_operation){.kind = ZSE_OP_ADD_GATED, .input = ZSE_SHARED,
        .output = ZSE_MIXTURE, .width = hidden});
    add(program, (struct zse_operation){.kind = ZSE_OP_ADD, .input = ZSE_MIXTURE,
        .output = ZSE_RESIDUAL, .width = hidden});
    add(program, (struct zse_operation){.kind = ZSE_OP_SCALE, .output = ZSE_RESIDUAL,
        .width = hidden, .scale = 0.75f});
}

static void record_head(struct program *program, const struct model *model)
{
    const int32_t quantizes = model->quantizes, vocabulary = (int32_t)model->vocabulary;
    add(program, (struct zse_operation){.kind = ZSE_OP_NORM, .output = ZSE_NORMED,
        .norm = &model->norm, .width = (int32_t)model->hidden, .quantizes = quantizes,
        .row_set = ZSE_WANTED_ROWS});
    add(program, (struct zse_operation){.kind = ZSE_OP_MULTIPLY, .input = ZSE_NORMED,
        .output = ZSE_LOGITS, .matrix = &model->head, .quantizes = quantizes,
        .row_set = ZSE_WANTED_ROWS});
    add(program, (struct zse_operation){.kind = ZSE_OP_CAP, .output = ZSE_LOGITS, .scale = 30.0f,
        .width = vocabulary, .row_set = ZSE_WANTED_ROWS});
    add(program, (struct zse_operation){.kind = ZSE_OP_SAMPLE, .input = ZSE_LOGITS,
        .width = vocabulary});
}

static void record(struct program *program, const struct model *model)
{
    add(program, (struct zse_operation){.kind = ZSE_OP_ROTARY, .output = ZSE_ROTARY,
        .rope = &model->rope});
    add(program, (struct zse_operation){.kind = ZSE_OP_EMBED, .output = ZSE_RESIDUAL,
        .matrix = &model->embedding});
    record_attention(program, model);
    if (model->has_experts) {
        record_experts(program, model);
    } else {
        record_dense(program, model);
    }
    record_head(program, model);
}

/* --- a step ----------------------------------------------------------------------------------- */

/* Keys and values of positions that are there already, in a cache of any type. */
static struct zse_cache random_cache(const struct model *model)
{
    static const int64_t widths[] = {4, 2, 2, 1};
    struct zse_cache cache = {.block_size = BLOCK_SIZE, .dtype = model->cache_dtype};
    const int64_t slots = (model->attention.latent ? 1 : 2) * model->attention.num_kv_heads;
    const int64_t count = BLOCK_SIZE * slots * model->attention.head_dim;
    cache.block_bytes = count * widths[cache.dtype];
    if (cache.dtype == ZSE_CACHE_INT8) {
        const int64_t scales = (model->attention.head_dim + 31) / 32; /* fp16, of a head */
        cache.block_bytes += BLOCK_SIZE * slots * scales * (int64_t)sizeof(uint16_t);
    }
    cache.data = array_of(NUM_BLOCKS * cache.block_bytes, 1);
    return cache;
}

/* One row each of some sequences, then a prompt; the blocks of each lie apart from each other. Or
 * such texts, whole ones. */
static void choose_rows(struct zse_step *step, const struct model *model)
{
    const int64_t vocabulary = model->vocabulary;
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
        if (model->attention.sees_all) {
            rows->start_position = 0;
        }
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

static void lay_out_quantized(struct zse_quantized *quantized, int64_t rows, int64_t columns)
{
    quantized->stride = (columns + 127) / 128 * 128;
    quantized->codes = array_of(rows * quantized->stride, 1);
    quantized->scales = array_of(rows * quantized->stride / 32, sizeof(float));
    quantized->sums = array_of(rows * quantized->stride / 32, sizeof(float));
}

static void lay_out(struct zse_step *step, const struct model *model)
{
    const struct zse_attention *attention = &model->attention;
    const struct zse_latent *latent = attention->latent;
    const int64_t mixed = mixed_columns(attention), wide = latent ? attention->num_heads : 0;
    const int64_t chosen = step->rows * model->experts.experts_per_token;
    const int64_t partial = ZSE_ATTENTION_PARTS * attention->num_heads * (attention->head_dim + 2);
    const int64_t of_latent = latent && latent->query_norm ? step->rows : 0;
    const int64_t counts[ZSE_NUM_REGISTERS] = {
        [ZSE_RESIDUAL] = step->rows * model->hidden,
        [ZSE_QKV] = step->rows * qkv_columns(attention),
        [ZSE_MIXED] = step->rows * mixed,
        [ZSE_JOINED] = step->rows * 2 * model->intermediate,
        [ZSE_HIDDEN] = step->rows * model->intermediate,
        [ZSE_ADDED] = step->rows * model->hidden,
        [ZSE_NORMED] = step->rows * model->hidden,
        [ZSE_LOGITS] = step->num_wanted * model->vocabulary,
        [ZSE_ROTARY] = step->rows * attention->rotary_dim,
        [ZSE_PARTIAL] = step->num_chunks * partial,
        [ZSE_ARRIVED] = step->num_chunks * attention->num_kv_heads,
        [ZSE_SHARED] = step->rows * model->hidden,
        [ZSE_SHARED_GATE] = step->rows,
        [ZSE_MIXTURE] = step->rows * model->hidden,
        [ZSE_ROUTER] = step->rows * model->experts.num_experts,
        [ZSE_CHOICES] = chosen * 3,
        [ZSE_RUNS] = (chosen + 1) * 3,
        [ZSE_CHOSEN] = chosen * model->hidden,
        [ZSE_CHOSEN_JOINED] = chosen * 2 * model->intermediate,
        [ZSE_CHOSEN_HIDDEN] = chosen * model->intermediate,
        [ZSE_QUERY_LATENT] = of_latent * model->query.columns,
        [ZSE_QUERIES] = of_latent * model->query.rows,
        [ZSE_WIDE_QUERIES] = step->rows * wide * attention->head_dim,
        [ZSE_WIDE_MIXED] = step->rows * wide * (latent ? latent->rank : 0),
    };
    for (int index = 0; index < ZSE_NUM_REGISTERS; index++) {
        step->registers[index] = counts[index] ? array_of(counts[index], sizeof(float)) : NULL;
    }
    const int64_t widest =
        model->hidden > model->intermediate ? model->hidden : model->intermediate;
    const int64_t read = mixed > model->query.columns ? mixed : model->query.columns;
    lay_out_quantized(&step->quantized, step->rows, read > widest ? read : widest);
    lay_out_quantized(&step->chosen, chosen, widest);
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
    struct program program = {0};
    choose_model(&model);
    struct zse_cache cache = random_cache(&model);
    step.caches = &cache;
    choose_rows(&step, &model);
    choose_sampling(&step, model.vocabulary);
    lay_out(&step, &model);
    printf("case %d scheme %d group %d hidden %d heads %d/%d x %d latent %d cache %d experts %d/%d "
           "rows %d/%d\n", index,
           model.scheme, model.group, (int)model.hidden, model.attention.num_heads,
           model.attention.num_kv_heads, model.attention.head_dim, model.latent.rank,
           model.cache_dtype,
           model.experts.experts_per_token, model.experts.num_experts, (int)step.single_rows, (int)step.rows);
    record(&program, &model);
    zse_run(pool, program.operations, program.count, &step);
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
