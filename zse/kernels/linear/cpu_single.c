/* Products of one row of int8 activations: weights are read from end to end, which is how a processor
 * fetches them best by itself.
 *
 * The sums of groups are kept in the order of the weights, and turned to where eight rows lie side
 * by side before they are scaled. So each row adds in the order in which it adds beside other rows
 * of activations (`cpu_codes.c`): a product has the same bits in any batch.
 */
#include "cpu.h"
#include "scales.h"

#ifdef SIMD_TURNS_ROWS

/* Groups of a row at most: sums and scales of eight rows lie in a worker's scratch. */
#define MOST_GROUPS (ZSE_SCRATCH_BYTES / 4 / (2 * SIMD_ROWS + 1) - 16)

/* How far before their use weights are asked for: what memory brings in 200 nanoseconds. */
#define AHEAD_BYTES 8192

/* Where things lie in a worker's scratch. */
struct places {
    float *sums;   /* [8, groups] */
    float *excess; /* [groups]: what sums of a row have too much */
    char *scales;  /* [groups, 8] */
};

/* Columns whose products are summed at once: a group, or a span that is one or two. */
#ifdef SIMD_SPAN
#define UNIT(group) SIMD_SPAN

SIMD_INLINE simd_span_lanes dot_unit(const uint8_t *weights, const int8_t *activations, int scheme,
                                     int group) {
    struct simd_span_columns columns = simd_span_columns(activations, 0, group);
    return simd_span_dot(simd_load_span(weights, scheme == ZSE_INT8,
                                        scheme == ZSE_NF4 ? zse_nf4_codes : NULL),
                         &columns);
}

#define SUM_UNITS(lanes, scheme, group, sums) simd_store_span_sums(lanes, group, sums)
typedef simd_span_lanes unit_lanes;

/* 128 was added to signed codes: what they add to a group's sum for its activations. */
static void find_excess(const struct zse_product *product, int group, float *excess) {
    const int64_t num_units = product->matrix->columns / SIMD_SPAN;
    const struct simd_span all = {{_mm512_set1_epi8(-128), _mm512_set1_epi8(-128)}};
    for (int64_t first = 0; first < num_units; first += SIMD_ROWS) {
        simd_span_lanes lanes[SIMD_ROWS];
        for (int64_t i = 0; i < SIMD_ROWS; i++) {
            int64_t unit = zse_smaller(first + i, num_units - 1);
            struct simd_span_columns columns =
                simd_span_columns(product->quantized.codes + unit * SIMD_SPAN, 0, group);
            lanes[i] = simd_span_dot(all, &columns);
        }
        simd_store_span_sums(lanes, group, excess + first * (SIMD_SPAN / group));
    }
}
#define HAS_EXCESS(scheme) ((scheme) != ZSE_INT4)
#define READS_TABLES 1
#else
#define UNIT(group) (group)
typedef simd_lanes unit_lanes;

SIMD_INLINE simd_lanes dot_unit(const uint8_t *weights, const int8_t *activations, int scheme,
                                int group) {
    struct simd_codes codes = zse_load_codes(weights, scheme, group);
    if (scheme == ZSE_INT4)
        return simd_dot_small(codes, activations, group);
    return scheme == ZSE_INT8 ? simd_dot_signed(codes, activations, group)
                              : simd_dot_even(codes, activations, group);
}

#define SUM_UNITS(lanes, scheme, group, sums) \
    simd_store(sums, (scheme) == ZSE_INT4 ? simd_sum_small_rows(lanes) : simd_sum_rows(lanes))
#define HAS_EXCESS(scheme) 0
/* Rows side by side share the sizes of activations, which is worth more. */
#define READS_TABLES 0
static void find_excess(const struct zse_product *product, int group, float *excess) {
    (void)product, (void)group, (void)excess;
}
#endif

/* The sums of eight rows' groups, row by row. */
SIMD_INLINE void sum_groups(const struct zse_product *product, const uint8_t *weights, int scheme,
                            int group, float *sums) {
    const int64_t bytes = zse_count_bytes(scheme, UNIT(group));
    const int64_t columns = product->matrix->columns;
    const int8_t *activations = product->quantized.codes;
    int64_t column = 0;
    for (int64_t left = columns / UNIT(group); left > 0; left--) { /* eight units a turn */
        unit_lanes lanes[SIMD_ROWS];
        for (int i = 0; i < SIMD_ROWS; i++) {
            lanes[i] = dot_unit(weights, activations + column, scheme, group);
            zse_prefetch(weights + AHEAD_BYTES, bytes);
            weights += bytes;
            column += UNIT(group);
            column = column == columns ? 0 : column;
        }
        SUM_UNITS(lanes, scheme, group, sums);
        sums += SIMD_ROWS * (UNIT(group) / group);
    }
}

SIMD_INLINE simd_floats add_sums(const struct zse_product *product, const struct places *places,
                                 int scheme, int group) {
    const int64_t num_groups = product->matrix->columns / group, size = zse_scale_bytes(scheme);
    const uint8_t *rows[SIMD_ROWS];
    simd_floats total = simd_all(0.0f);
    for (int row = 0; row < SIMD_ROWS; row++)
        rows[row] = (const uint8_t *)(places->sums + row * num_groups);
    for (int64_t first = 0; first < num_groups; first += 4) {
        simd_floats sums[4];
        simd_turn_rows(rows, first * 4, (void *)sums); /* beyond a row lies scratch */
        for (int64_t index = first; index < zse_smaller(first + 4, num_groups); index++) {
            struct zse_factors factors =
                zse_load_factors(places->scales + index * size * SIMD_ROWS, scheme);
            simd_floats own = sums[index - first];
            if (HAS_EXCESS(scheme))
                own -= simd_all(places->excess[index]);
            zse_add_group(&total, own, &factors, product->quantized.scales[index],
                          product->quantized.sums[index], scheme);
        }
    }
    return total;
}

SIMD_INLINE void multiply_rows(const struct zse_product *product, int64_t first,
                               const struct places *places, int scheme, int group) {
    const struct zse_matrix *matrix = product->matrix;
    const int64_t offset = zse_count_bytes(scheme, first * matrix->columns);
    const int64_t scale_bytes = zse_count_scale_bytes(matrix, SIMD_ROWS);
    zse_prefetch((const char *)matrix->scales + zse_count_scale_bytes(matrix, first + SIMD_ROWS),
                 scale_bytes);
    sum_groups(product, (const uint8_t *)matrix->data + offset, scheme, group, places->sums);
    zse_gather_scales(matrix, first, places->scales);
    simd_floats totals = add_sums(product, places, scheme, group);
    zse_finish(product, 0, first, totals * zse_column_factors(matrix, first));
}

static void multiply_eight(const struct zse_product *product, int64_t first,
                           const struct places *places) {
    const int scheme = product->matrix->scheme, group = product->group;
    if (scheme == ZSE_INT4 && group == 128)
        multiply_rows(product, first, places, ZSE_INT4, 128);
    else if (scheme == ZSE_INT4)
        multiply_rows(product, first, places, ZSE_INT4, 64);
    else if (scheme == ZSE_NF4 && group == 128)
        multiply_rows(product, first, places, ZSE_NF4, 128);
    else if (scheme == ZSE_NF4)
        multiply_rows(product, first, places, ZSE_NF4, 64);
    else
        multiply_rows(product, first, places, ZSE_INT8, 128);
}

/* Whether rows follow each other without a gap, in units. */
static int is_streamed(const struct zse_product *product) {
    const int scheme = product->matrix->scheme, group = product->group;
    const int64_t columns = product->matrix->columns;
    if (product->num_rows != 1 || columns % UNIT(group) || columns / group > MOST_GROUPS)
        return 0;
    if (scheme == ZSE_INT8)
        return group == 128;
    return (scheme == ZSE_INT4 || (READS_TABLES && scheme == ZSE_NF4)) &&
           (group == 128 || group == 64);
}

void zse_multiply_one(const struct zse_product *product, int64_t first, int64_t count,
                      struct zse_worker *worker) {
    int64_t whole = is_streamed(product) ? count / SIMD_ROWS * SIMD_ROWS : 0;
    if (whole) {
        const int64_t num_groups = product->matrix->columns / product->group;
        float *sums = worker->scratch, *scales = sums + SIMD_ROWS * num_groups;
        struct places places = {sums, scales + SIMD_ROWS * num_groups, (char *)scales};
        if (HAS_EXCESS(product->matrix->scheme))
            find_excess(product, product->group, places.excess);
        for (int64_t row = first; row < first + whole; row += SIMD_ROWS)
            multiply_eight(product, row, &places);
    }
    if (count > whole)
        zse_multiply_codes(product, first + whole, count - whole, worker);
}

#else

void zse_multiply_one(const struct zse_product *product, int64_t first, int64_t count,
                      struct zse_worker *worker) {
    zse_multiply_codes(product, first, count, worker);
}

#endif
