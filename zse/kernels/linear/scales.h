/* The scales of eight rows, turned: side by side for each group, as products are scaled. */
#ifndef ZSE_LINEAR_SCALES_H
#define ZSE_LINEAR_SCALES_H

#include "cpu.h"

#ifdef SIMD_TURNS_ROWS
/* Of `size` 4 or 2: sixteen bytes of each row at a time, the last ones again where a row ends. */
SIMD_INLINE int64_t zse_turn_scales(const uint8_t *const *rows, int64_t num_groups, int64_t size,
                                    char *scales) {
    const int64_t step = 16 / size;
    if (num_groups < step)
        return 0;
    for (int64_t index = 0; index < num_groups; index += step) {
        int64_t from = zse_smaller(index, num_groups - step);
        char *output = scales + from * SIMD_ROWS * size;
        if (size == 4)
            simd_turn_rows(rows, from * size, (void *)output);
        else
            simd_turn_halves(rows, from * size, (void *)output);
    }
    return num_groups;
}
#endif

SIMD_INLINE void zse_gather_sized(const struct zse_matrix *matrix, int64_t first, int64_t size,
                                  char *scales) {
    int64_t num_groups = matrix->columns / matrix->group, index = 0;
    const uint8_t *rows[SIMD_ROWS];
    for (int64_t row = 0; row < SIMD_ROWS; row++)
        rows[row] = (const uint8_t *)matrix->scales +
                    zse_block_row(matrix, first, row) * num_groups * size;
#ifdef SIMD_TURNS_ROWS
    if (size > 1)
        index = zse_turn_scales(rows, num_groups, size, scales);
#endif
    for (; index < num_groups; index++)
        for (int64_t row = 0; row < SIMD_ROWS; row++)
            memcpy(scales + (index * SIMD_ROWS + row) * size, rows[row] + index * size,
                   (size_t)size);
}

/* Of rows first .. first + 8; of INT8, whose rows have one each, nothing is written. */
SIMD_INLINE void zse_gather_scales(const struct zse_matrix *matrix, int64_t first, char *scales) {
    if (zse_has_zeros(matrix->scheme))
        zse_gather_sized(matrix, first, 4, scales);
    else if (zse_scale_bytes(matrix->scheme) == 2)
        zse_gather_sized(matrix, first, 2, scales);
    else if (zse_scale_bytes(matrix->scheme) == 1)
        zse_gather_sized(matrix, first, 1, scales);
}

#endif
