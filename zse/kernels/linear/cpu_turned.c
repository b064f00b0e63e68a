/* Products of several rows of int8 activations, as of requests that are answered at once, and of
 * prompts: a group of weights is turned once and multiplied with all of them.
 *
 * Sums of a group are exact and groups are added in the order of `cpu_codes.c`, so a row has the bits
 * that it has in any batch.
 */
#include "../native/simd_turned.h"
#include "cpu.h"
#include "scales.h"

#ifdef SIMD_TURNED_ROWS

/* Vectors of rows that share the columns of activations, and their rows. */
#define VECTORS 2
#define WIDTH (VECTORS * SIMD_TURNED_ROWS)
/* Eight rows each of a vector's. */
#define PARTS (SIMD_TURNED_ROWS / SIMD_ROWS)
_Static_assert(ZSE_TURNED_ROWS % WIDTH == 0, "pieces are whole blocks of rows");
#define PASS_ROWS SIMD_TURNED_INPUTS
/* Rows of activations that are multiplied before the next weights are turned. */
#define CHUNK_ROWS 128
/* Groups before their use that weights are asked for. */
#define GROUPS_AHEAD 8
/* Vectors of a group: 128 columns of four bits are read as they are, others a byte a column. */
#define MOST_WORDS (ZSE_ACTIVATION_GROUP / 4)

/* What a worker's scratch has for some columns of a product. */
struct turned {
    _Alignas(64) simd_turned words[MOST_WORDS][VECTORS];
    _Alignas(64) simd_turned_floats totals[CHUNK_ROWS][VECTORS];
    _Alignas(64) uint8_t tails[WIDTH][ZSE_ACTIVATION_GROUP];
    const uint8_t *rows[WIDTH];
    int64_t num_groups;       /* whole ones of a row */
    int64_t block_bytes;      /* of these rows */
    int64_t first_input;      /* row of the activations, of this chunk */
    int64_t num_inputs;
    const int8_t *columns[CHUNK_ROWS]; /* of activations; the last again behind an odd number */
    float *input_scales;      /* [groups, CHUNK_ROWS] */
    float *input_sums;        /* [groups, CHUNK_ROWS] */
    int32_t *starts;          /* [groups, CHUNK_ROWS]: what sums of signed codes begin with */
    char *scales;             /* of rows 0 to 7 for each group, then of the others */
    int64_t scale_bytes;      /* of eight rows */
};

/* Vectors that a group of a scheme becomes. */
SIMD_INLINE int64_t count_words(int scheme, int group) {
    return scheme == ZSE_INT4 ? group / 8 : group / 4;
}

/* Put four columns of rows, or eight of INT4, where a group is multiplied from; other codes than INT4's
 * become unsigned bytes, 128 more, in the order of columns. */
SIMD_INLINE void put_word(struct turned *turned, int64_t word, int vector, simd_turned bytes,
                          int scheme, int group) {
    if (scheme == ZSE_INT4) {
        turned->words[word][vector] = bytes;
    } else if (scheme == ZSE_INT8) {
        turned->words[word][vector] = simd_turned_unsigned(bytes);
    } else {
        const int8_t *table = zse_table_of(scheme);
        simd_turned low = simd_turned_look_up(table, simd_turned_low(bytes));
        simd_turned high = simd_turned_look_up(table, simd_turned_high(bytes));
        turned->words[word][vector] = simd_turned_unsigned(low);
        turned->words[group / 8 + word][vector] = simd_turned_unsigned(high);
    }
}

SIMD_INLINE void turn_group(struct turned *turned, const uint8_t *const *rows, int64_t offset,
                            int scheme, int group) {
    const int64_t bytes = zse_count_bytes(scheme, group);
    for (int vector = 0; vector < VECTORS; vector++)
        for (int64_t first = 0; first < bytes; first += SIMD_TURNED_BYTES) {
            simd_turned words[SIMD_TURNED_WORDS];
            simd_turn(rows + vector * SIMD_TURNED_ROWS, offset + first, words);
            for (int i = 0; i < SIMD_TURNED_WORDS; i++)
                put_word(turned, first / 4 + i, vector, words[i], scheme, group);
        }
}

/* Ask for what is turned some groups later, a word's share: asked for all at once, it would come one
 * by one. Behind the last group that is what the next rows begin with, or nothing. */
SIMD_INLINE void prefetch_ahead(const struct turned *turned, int64_t index, int64_t word,
                                int scheme, int group) {
    const int64_t bytes = zse_count_bytes(scheme, group);
    const int64_t count = count_words(scheme, group);
    const int64_t ahead = zse_smaller(GROUPS_AHEAD, turned->num_groups);
    int64_t later = (index + ahead) * bytes;
    if (index + ahead >= turned->num_groups)
        later += turned->block_bytes - turned->num_groups * bytes;
    for (int64_t row = word * WIDTH / count; row < (word + 1) * WIDTH / count; row++)
        zse_prefetch(turned->rows[row] + later, bytes);
}

/* The sums of a group for `count` rows of activations, from row `begin` on. */
SIMD_INLINE void sum_group(const struct turned *turned, int64_t index, int64_t begin, int scheme,
                           int group, int count, simd_turned_floats sums[][VECTORS]) {
    const int is_packed = scheme == ZSE_INT4;
    const int8_t *columns[PASS_ROWS];
    simd_turned wide[PASS_ROWS][VECTORS];
    for (int i = 0; i < count; i++) {
        columns[i] = turned->columns[begin + i] + index * group;
        for (int vector = 0; vector < VECTORS; vector++)
            wide[i][vector] = simd_turned_start(
                is_packed ? 0 : turned->starts[index * CHUNK_ROWS + begin + i]);
    }
    for (int64_t word = 0; word < count_words(scheme, group); word++) {
        if (begin == 0)
            prefetch_ahead(turned, index, word, scheme, group);
        for (int half = 0; half < (is_packed ? 2 : 1); half++) {
            simd_turned first = turned->words[word][0], second = turned->words[word][1];
            if (is_packed) {
                first = half ? simd_turned_high(first) : simd_turned_low(first);
                second = half ? simd_turned_high(second) : simd_turned_low(second);
            }
#pragma GCC unroll 8
            for (int i = 0; i < count; i++) {
                simd_turned four = simd_turned_word(columns[i] + 4 * word + half * (group / 2));
                wide[i][0] = simd_turned_dot(wide[i][0], first, four);
                wide[i][1] = simd_turned_dot(wide[i][1], second, four);
            }
        }
    }
    for (int i = 0; i < count; i++)
        for (int vector = 0; vector < VECTORS; vector++)
            sums[i][vector] = simd_turned_widen(wide[i][vector]);
}

struct wide_factors {
    simd_turned_floats scales[VECTORS];
    simd_turned_floats zeros[VECTORS];
};

SIMD_INLINE struct wide_factors load_factors(const struct turned *turned, int64_t index,
                                             int scheme) {
    const char *own = turned->scales + index * zse_scale_bytes(scheme) * SIMD_ROWS;
    struct wide_factors factors;
    for (int vector = 0; vector < VECTORS; vector++) {
        simd_floats scales[PARTS], zeros[PARTS];
        for (int part = 0; part < PARTS; part++) {
            struct zse_factors some = zse_load_factors(own, scheme);
            scales[part] = some.scales;
            zeros[part] = some.zeros;
            own += turned->scale_bytes;
        }
        factors.scales[vector] = simd_turned_join(scales);
        factors.zeros[vector] = simd_turned_join(zeros);
    }
    return factors;
}

/* Multiply a turned group with `count` rows of activations. */
SIMD_INLINE void add_pass(struct turned *turned, int64_t index, int64_t begin,
                          const struct wide_factors *factors, int scheme, int group, int count) {
    simd_turned_floats sums[PASS_ROWS][VECTORS];
    const int64_t place = index * CHUNK_ROWS + begin;
    sum_group(turned, index, begin, scheme, group, count, sums);
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) {
        simd_turned_floats scale = simd_turned_number(turned->input_scales[place + i]);
        simd_turned_floats sum = simd_turned_number(turned->input_sums[place + i]);
        for (int vector = 0; vector < VECTORS; vector++) {
            simd_turned_floats *total = &turned->totals[begin + i][vector];
            simd_turned_floats factor =
                scheme == ZSE_INT8 ? scale : factors->scales[vector] * scale;
            simd_turned_floats added = simd_turned_fused(sums[i][vector], factor, *total);
            if (zse_has_zeros(scheme))
                added = simd_turned_fused(factors->zeros[vector], sum, added);
            *total = added;
        }
    }
}

SIMD_INLINE void add_group(struct turned *turned, const uint8_t *const *rows, int64_t offset,
                           int64_t index, int scheme, int group) {
    turn_group(turned, rows, offset, scheme, group);
    struct wide_factors factors = load_factors(turned, index, scheme);
    for (int64_t begin = 0; begin < turned->num_inputs;) {
        int64_t left = turned->num_inputs - begin;
        if (PASS_ROWS == 8 && left > 6) {
            add_pass(turned, index, begin, &factors, scheme, group, PASS_ROWS);
            begin += PASS_ROWS;
        } else if (left > 2) {
            add_pass(turned, index, begin, &factors, scheme, group, 4);
            begin += 4;
        } else {
            add_pass(turned, index, begin, &factors, scheme, group, 2);
            begin += 2;
        }
    }
}

/* Columns of int8 rows that fill no group: from a copy, as nothing lies behind a row. */
SIMD_INLINE void add_tail(struct turned *turned, int64_t columns, int64_t index, int group) {
    const uint8_t *tails[WIDTH];
    const int64_t begin = index * group;
    for (int row = 0; row < WIDTH; row++) {
        memset(turned->tails[row], 0, sizeof turned->tails[row]);
        tails[row] =
            memcpy(turned->tails[row], turned->rows[row] + begin, (size_t)(columns - begin));
    }
    add_group(turned, tails, 0, index, ZSE_INT8, group);
}

SIMD_INLINE void add_groups(struct turned *turned, const struct zse_matrix *matrix, int scheme,
                            int group) {
    const int64_t bytes = zse_count_bytes(scheme, group), num_groups = matrix->columns / group;
    for (int64_t index = 0; index < num_groups; index++)
        add_group(turned, turned->rows, index * bytes, index, scheme, group);
    if (scheme == ZSE_INT8 && matrix->columns % group)
        add_tail(turned, matrix->columns, num_groups, group);
}

static void add_scheme(struct turned *turned, const struct zse_matrix *matrix, int group) {
    if (matrix->scheme == ZSE_INT4 && group == 128)
        add_groups(turned, matrix, ZSE_INT4, 128);
    else if (matrix->scheme == ZSE_INT4)
        add_groups(turned, matrix, ZSE_INT4, 64);
    else if (matrix->scheme == ZSE_NF4 && group == 128)
        add_groups(turned, matrix, ZSE_NF4, 128);
    else if (matrix->scheme == ZSE_NF4)
        add_groups(turned, matrix, ZSE_NF4, 64);
    else
        add_groups(turned, matrix, ZSE_INT8, 128);
}

/* Ask for the places of sums, and for the scales of the rows behind these. */
static void prefetch_ends(const struct zse_product *product, int64_t first,
                          const struct turned *turned) {
    const struct zse_matrix *matrix = product->matrix;
    for (int64_t i = 0; i < turned->num_inputs; i++) {
        const float *output =
            product->output + (turned->first_input + i) * matrix->rows + first;
        __builtin_prefetch(output, 1, 3);
        __builtin_prefetch(output + WIDTH / 2, 1, 3);
    }
    zse_prefetch((const char *)matrix->scales + zse_count_scale_bytes(matrix, first + WIDTH),
                 zse_count_scale_bytes(matrix, WIDTH));
}

static void multiply_rows(const struct zse_product *product, int64_t first, struct turned *turned) {
    const struct zse_matrix *matrix = product->matrix;
    const int64_t bytes = zse_count_bytes(matrix->scheme, matrix->columns);
    for (int row = 0; row < WIDTH; row++)
        turned->rows[row] =
            (const uint8_t *)matrix->data + zse_block_row(matrix, first, row) * bytes;
    for (int64_t row = 0; row < WIDTH; row += SIMD_ROWS)
        zse_gather_scales(matrix, first + row,
                          turned->scales + row / SIMD_ROWS * turned->scale_bytes);
    prefetch_ends(product, first, turned);
    memset(turned->totals, 0,
           (size_t)(turned->num_inputs + turned->num_inputs % 2) * sizeof turned->totals[0]);
    add_scheme(turned, matrix, product->group);
    for (int64_t column = 0; column < zse_smaller(WIDTH, matrix->rows - first);
         column += SIMD_ROWS) {
        simd_floats factors = zse_column_factors(matrix, first + column);
        for (int64_t row = 0; row < turned->num_inputs; row++)
            zse_finish(product, turned->first_input + row, first + column,
                       simd_load((const float *)&turned->totals[row] + column) * factors);
    }
}

/* Put what is read of a chunk side by side, the last row again where their number is odd. Codes are
 * multiplied as unsigned bytes: sums begin without what 128 more in each makes too much. */
static void find_inputs(const struct zse_product *product, int64_t num_groups,
                        struct turned *turned) {
    const struct zse_quantized *input = &product->quantized;
    const int is_packed = product->matrix->scheme == ZSE_INT4;
    for (int64_t i = 0; i < turned->num_inputs + turned->num_inputs % 2; i++) {
        const int64_t row = turned->first_input + zse_smaller(i, turned->num_inputs - 1);
        const int64_t numbers = row * (input->stride / 32);
        turned->columns[i] = input->codes + row * input->stride;
        for (int64_t index = 0; index < num_groups; index++) {
            const int64_t place = index * CHUNK_ROWS + i;
            turned->input_scales[place] = input->scales[numbers + index];
            turned->input_sums[place] = input->sums[numbers + index];
            if (!is_packed)
                turned->starts[place] =
                    -128 * simd_turned_total(turned->columns[i] + index * product->group,
                                             product->group);
        }
    }
}

static void find_places(const struct zse_product *product, int64_t num_groups,
                        struct turned *turned) {
    const struct zse_matrix *matrix = product->matrix;
    turned->num_groups = matrix->columns / product->group;
    turned->block_bytes = WIDTH * zse_count_bytes(matrix->scheme, matrix->columns);
    turned->input_scales = (float *)(turned + 1);
    turned->input_sums = turned->input_scales + num_groups * CHUNK_ROWS;
    turned->starts = (int32_t *)(turned->input_sums + num_groups * CHUNK_ROWS);
    turned->scales = (char *)(turned->starts + num_groups * CHUNK_ROWS);
    turned->scale_bytes = num_groups * SIMD_ROWS * zse_scale_bytes(matrix->scheme);
}

void zse_multiply_turned(const struct zse_product *product, int64_t first, int64_t count,
                         struct zse_worker *worker) {
    struct turned *turned = worker->scratch;
    const int64_t num_groups = (product->matrix->columns + product->group - 1) / product->group;
    find_places(product, num_groups, turned);
    for (int64_t begin = 0; begin < product->num_rows; begin += CHUNK_ROWS) {
        turned->first_input = begin;
        turned->num_inputs = zse_smaller(CHUNK_ROWS, product->num_rows - begin);
        find_inputs(product, num_groups, turned);
        for (int64_t row = first; row < first + count; row += WIDTH)
            multiply_rows(product, row, turned);
    }
}

/* Columns whose groups' numbers a worker's scratch has room for: groups have 64 at least. */
#define GROUP_BYTES (12 * CHUNK_ROWS + 4 * WIDTH)
#define MOST_COLUMNS \
    (((ZSE_SCRATCH_BYTES - (int64_t)sizeof(struct turned)) / GROUP_BYTES - 1) * 64)

/* Rows from which on turning pays, as measured: a byte a column takes longer to turn than a nibble. */
int zse_takes_turned(const struct zse_product *product) {
    const int scheme = product->matrix->scheme, group = product->group;
    const int64_t least = scheme == ZSE_INT4 ? 3 : scheme == ZSE_NF4 ? 4 : 6;
    const int64_t columns = product->matrix->columns;
    if (product->num_rows < least || columns > MOST_COLUMNS)
        return 0;
    if (product->num_rows > CHUNK_ROWS / 2 && columns > SIMD_TURNED_COLUMNS)
        return 0;
    if (scheme == ZSE_INT8)
        return group == 128;
    return (scheme == ZSE_INT4 || scheme == ZSE_NF4) && (group == 128 || group == 64);
}

#else

int zse_takes_turned(const struct zse_product *product) {
    (void)product;
    return 0;
}

void zse_multiply_turned(const struct zse_product *product, int64_t first, int64_t count,
                      struct zse_worker *worker) {
    zse_multiply_codes(product, first, count, worker);
}

#endif
