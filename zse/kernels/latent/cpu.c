/* Latent attention beside attention itself: a latent and a key into the cache, queries through the
 * matrices of their heads' keys, and what attention returns through those of their values. */
#include "../attention/tile.h"
#include "../native/kept.h"
#include "../native/paged.h"
#include "../native/qkv.h"
#include "../native/row_norm.h"
#include "../native/share.h"

/* Columns of queries, and of values, that a piece makes, of one head. */
#define QUERY_COLUMNS 128
#define VALUE_COLUMNS 32
/* Rows of the step that are multiplied before their sums leave the scratch. */
#define ROWS_TOGETHER 48
/* Numbers of a part of a head's matrix, and of sums, as float32. */
#define PART_NUMBERS (ZSE_MAX_HEAD_DIM * QUERY_COLUMNS)

_Static_assert((PART_NUMBERS + ROWS_TOGETHER * QUERY_COLUMNS) * 4 <= ZSE_SCRATCH_BYTES,
               "latent attention needs more scratch");
_Static_assert((int)ZSE_FP32 == (int)ZSE_CACHE_FP32 && (int)ZSE_FP16 == (int)ZSE_CACHE_FP16 &&
                   (int)ZSE_BF16 == (int)ZSE_CACHE_BF16,
               "plain matrices are read as caches are");

static inline int64_t columns_that_turn(const struct zse_attention *attention) {
    return attention->head_dim - attention->latent->rank;
}

static inline const float *rotary_of(const struct zse_attention *attention,
                                     const struct zse_step *step, int64_t row) {
    return step->registers[attention->rotary] + row * attention->rotary_dim;
}

/* --- what is kept ----------------------------------------------------------------------------- */

static int64_t count_store_pieces(const struct zse_operation *operation,
                                  const struct zse_step *step, int num_threads) {
    (void)num_threads;
    return count_row_pieces(rows_of_operation(operation, step));
}

static void run_store_piece(const struct zse_operation *operation, const struct zse_step *step,
                            int64_t piece, struct zse_worker *worker) {
    (void)worker;
    const struct zse_attention *attention = operation->attention;
    const struct zse_latent *latent = attention->latent;
    const struct zse_cache *cache = step->caches + operation->layer;
    struct row_range rows = rows_of_piece(step->rows, piece);
    for (int64_t row = rows.first; row < rows.end; row++) {
        float *query = step->registers[ZSE_QKV] + row * qkv_width(attention);
        float *kept = query + latent->query_columns;
        int64_t slot = slots_of(step, cache)[row];
        struct place place = {cache->data + slot / cache->block_size * cache->block_bytes,
                              slot % cache->block_size, kept_rows(attention)};
        normalize_row(kept, latent->rank, latent->norm, 1.0f, kept);
        rotate_head(kept + latent->rank, rotary_of(attention, step, row), attention->rotary_dim);
        store_head(cache, &place, 0, kept, attention->head_dim);
        if (latent->query_norm != NULL)
            normalize_row(query, latent->query_columns, latent->query_norm, 1.0f,
                          step->registers[operation->output] + row * latent->query_columns);
    }
}

const struct zse_kernel zse_latent_store = {count_store_pieces, run_store_piece};

/* --- products of heads ------------------------------------------------------------------------ */

/* One head's rows of the step, a part of its matrix as float32, and where its sums go. */
struct head_product {
    struct product product; /* of the first rows; its sums lie in the scratch */
    float *output;
    int64_t output_stride;
    int64_t columns;
};

/* Multiply all rows of the step, and give of the sums the columns that there are. */
static void multiply_rows(struct head_product *head, int64_t rows) {
    struct product *product = &head->product;
    int64_t panels = (head->columns + PANEL_COLUMNS - 1) / PANEL_COLUMNS;
    for (int64_t first = 0; first < rows; first += ROWS_TOGETHER) {
        int64_t count = rows - first < ROWS_TOGETHER ? rows - first : ROWS_TOGETHER;
        multiply(product, count, panels);
        for (int64_t row = 0; row < count; row++)
            for (int64_t column = 0; column < head->columns; column += VECTOR_LANES)
                vstore_some(head->output + (first + row) * head->output_stride + column,
                            vload(product->sums + row * product->sums_stride + column),
                            head->columns - column);
        product->left += count * product->left_stride;
    }
}

/* Where `count` rows of the matrix begin, from a column on, of which `columns` are read. */
static struct paged_rows rows_of_matrix(const struct zse_matrix *matrix, int64_t first,
                                        int64_t count, int64_t first_column, int64_t columns,
                                        const char **rows) {
    int64_t bytes = bytes_of_row(1, matrix->scheme);
    for (int64_t row = 0; row < count; row++)
        rows[row] = (const char *)matrix->data +
                    ((first + row) * matrix->columns + first_column) * bytes;
    return (struct paged_rows){rows, NULL, (int32_t)columns, matrix->scheme};
}

static inline int64_t rows_of_head(const struct zse_latent *latent) {
    return latent->key_dim + latent->value_dim;
}

/* --- queries ---------------------------------------------------------------------------------- */

static inline int64_t query_parts(const struct zse_attention *attention) {
    return (attention->latent->rank + QUERY_COLUMNS - 1) / QUERY_COLUMNS;
}

static int64_t count_absorb_pieces(const struct zse_operation *operation,
                                   const struct zse_step *step, int num_threads) {
    (void)step, (void)num_threads;
    return operation->attention->num_heads * query_parts(operation->attention);
}

/* Copy the columns of a head's queries that turn, behind those that are multiplied, and turn them. */
static void turn_queries(const struct zse_attention *attention, const struct zse_step *step,
                         const float *queries, int64_t queries_stride, float *output) {
    int64_t turning = columns_that_turn(attention), output_stride = query_columns(attention);
    for (int64_t row = 0; row < step->rows; row++, queries += queries_stride) {
        memcpy(output, queries + attention->latent->key_dim, (size_t)turning * sizeof(float));
        rotate_head(output, rotary_of(attention, step, row), attention->rotary_dim);
        output += output_stride;
    }
}

static void run_absorb_piece(const struct zse_operation *operation, const struct zse_step *step,
                             int64_t piece, struct zse_worker *worker) {
    const struct zse_attention *attention = operation->attention;
    const struct zse_latent *latent = attention->latent;
    int64_t head = piece / query_parts(attention), part = piece % query_parts(attention);
    int64_t query_dim = latent->key_dim + columns_that_turn(attention);
    int64_t stride = operation->input == ZSE_QKV ? qkv_width(attention)
                                                 : attention->num_heads * query_dim;
    int64_t first = part * QUERY_COLUMNS, left = latent->rank - first;
    int64_t columns = left < QUERY_COLUMNS ? left : QUERY_COLUMNS;
    const float *queries = step->registers[operation->input] + head * query_dim;
    float *output = step->registers[operation->output] + head * attention->head_dim;
    float *numbers = worker->scratch;
    const char *rows[ZSE_MAX_HEAD_DIM];
    struct paged_rows keys = rows_of_matrix(latent->expansion, head * rows_of_head(latent),
                                            latent->key_dim, first, columns, rows);
    copy_rows(&keys, 0, latent->key_dim, numbers, QUERY_COLUMNS);
    struct head_product product = {
        .product = {.left = queries,
                    .right = numbers,
                    .sums = numbers + PART_NUMBERS,
                    .left_stride = stride,
                    .right_stride = QUERY_COLUMNS,
                    .right_panel = PANEL_COLUMNS,
                    .sums_stride = QUERY_COLUMNS,
                    .depth = latent->key_dim},
        .output = output + first,
        .output_stride = query_columns(attention),
        .columns = columns,
    };
    multiply_rows(&product, step->rows);
    if (part == 0) turn_queries(attention, step, queries, stride, output + latent->rank);
}

const struct zse_kernel zse_absorb = {count_absorb_pieces, run_absorb_piece};

/* --- values ----------------------------------------------------------------------------------- */

static inline int64_t value_parts(const struct zse_attention *attention) {
    return (attention->latent->value_dim + VALUE_COLUMNS - 1) / VALUE_COLUMNS;
}

static int64_t count_expand_pieces(const struct zse_operation *operation,
                                   const struct zse_step *step, int num_threads) {
    (void)step, (void)num_threads;
    return operation->attention->num_heads * value_parts(operation->attention);
}

static void run_expand_piece(const struct zse_operation *operation, const struct zse_step *step,
                             int64_t piece, struct zse_worker *worker) {
    const struct zse_attention *attention = operation->attention;
    const struct zse_latent *latent = attention->latent;
    int64_t head = piece / value_parts(attention), rank = latent->rank;
    int64_t first = piece % value_parts(attention) * VALUE_COLUMNS;
    int64_t left = latent->value_dim - first;
    int64_t columns = left < VALUE_COLUMNS ? left : VALUE_COLUMNS;
    int64_t panel = (rank + VECTOR_LANES - 1) / VECTOR_LANES * VECTOR_LANES * PANEL_COLUMNS;
    float *numbers = worker->scratch;
    const char *rows[VALUE_COLUMNS];
    struct paged_rows values = rows_of_matrix(
        latent->expansion, head * rows_of_head(latent) + latent->key_dim + first, columns, 0, rank,
        rows);
    for (int64_t column = 0; column < columns; column += VECTOR_LANES)
        turn_rows(&values, column, columns - column,
                  numbers + column / PANEL_COLUMNS * panel + column % PANEL_COLUMNS,
                  PANEL_COLUMNS);
    struct head_product product = {
        .product = {.left = step->registers[operation->input] + head * rank,
                    .right = numbers,
                    .sums = numbers + PART_NUMBERS,
                    .left_stride = attention->num_heads * rank,
                    .right_stride = PANEL_COLUMNS,
                    .right_panel = panel,
                    .sums_stride = VALUE_COLUMNS,
                    .depth = rank},
        .output = step->registers[operation->output] + head * latent->value_dim + first,
        .output_stride = (int64_t)attention->num_heads * latent->value_dim,
        .columns = columns,
    };
    multiply_rows(&product, step->rows);
}

const struct zse_kernel zse_expand = {count_expand_pieces, run_expand_piece};
