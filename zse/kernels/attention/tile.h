/* The products of attention over one tile of keys: small matrices of float32 that lie in caches. */
#ifndef ZSE_ATTENTION_TILE_H
#define ZSE_ATTENTION_TILE_H

#include "../native/vector.h"

/* Keys that are looked at together. */
#define TILE_KEYS 64
/* Columns of a panel: what one block of sums is wide. Strides are multiples of it. */
#define PANEL_COLUMNS (2 * VECTOR_LANES)

/* What is multiplied: left [rows, depth] by right [depth, columns], into sums [rows, columns]. */
struct product {
    const float *left;
    const float *right;
    float *sums;
    int64_t left_stride;
    int64_t right_stride;
    int64_t sums_stride;
    int64_t depth;
};

/* `rows` rows of `vectors` vectors at once, all in registers; both are constants where it is called. */
ALWAYS_INLINE void multiply_block(const struct product *product, int64_t row, int64_t column,
                                  int rows, int vectors, int adds) {
    const float *left = product->left + row * product->left_stride;
    const float *right = product->right + column;
    float *output = product->sums + row * product->sums_stride + column;
    vfloat sums[6][8];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++)
            sums[i][j] = adds ? vload(output + i * product->sums_stride + j * VECTOR_LANES)
                              : (vfloat){0};
    for (int64_t k = 0; k < product->depth; k++, right += product->right_stride) {
        vfloat columns[8];
        for (int j = 0; j < vectors; j++) columns[j] = vload(right + j * VECTOR_LANES);
        for (int i = 0; i < rows; i++) {
            vfloat value = vbroadcast(left[i * product->left_stride + k]);
            for (int j = 0; j < vectors; j++) sums[i][j] += value * columns[j];
        }
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++)
            vstore(output + i * product->sums_stride + j * VECTOR_LANES, sums[i][j]);
}

/* sums (+)= left @ right over one panel of columns. */
ALWAYS_INLINE void multiply_panel(const struct product *product, int64_t column, int64_t rows,
                                  int adds) {
    int64_t row = 0;
    for (; row + 6 <= rows; row += 6) multiply_block(product, row, column, 6, 2, adds);
    switch (rows - row) {
        case 5:
            multiply_block(product, row, column, 5, 2, adds);
            break;
        case 4:
            multiply_block(product, row, column, 4, 2, adds);
            break;
        case 3:
            multiply_block(product, row, column, 3, 2, adds);
            break;
        case 2:
            multiply_block(product, row, column, 2, 2, adds);
            break;
        case 1:
            multiply_block(product, row, column, 1, 2, adds);
    }
}

#endif
