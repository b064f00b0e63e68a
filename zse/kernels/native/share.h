/* How rows fall into pieces of work: one by one while there are few, more at a time when the claims
 * would cost more than they balance. */
#ifndef ZSE_SHARE_H
#define ZSE_SHARE_H

#include "zse.h"

struct row_range {
    int64_t first;
    int64_t end;
};

static inline int64_t rows_of_operation(const struct zse_operation *operation,
                                        const struct zse_step *step) {
    if (operation->row_set == ZSE_WANTED_ROWS) return step->num_wanted;
    if (operation->row_set == ZSE_CHOSEN_ROWS)
        return step->rows * operation->experts->experts_per_token;
    return step->rows;
}

/* Where the int8 form of those rows lies. */
static inline const struct zse_quantized *quantized_of_operation(
    const struct zse_operation *operation, const struct zse_step *step) {
    return operation->row_set == ZSE_CHOSEN_ROWS ? &step->chosen : &step->quantized;
}

static inline int64_t rows_a_piece(int64_t rows) { return rows < 32 ? 1 : 4; }

static inline int64_t count_row_pieces(int64_t rows) {
    return (rows + rows_a_piece(rows) - 1) / rows_a_piece(rows);
}

static inline struct row_range rows_of_piece(int64_t rows, int64_t piece) {
    int64_t first = piece * rows_a_piece(rows), end = first + rows_a_piece(rows);
    return (struct row_range){first, end < rows ? end : rows};
}

#endif
