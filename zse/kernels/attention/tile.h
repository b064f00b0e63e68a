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
    int64_t right_panel; /* from one panel of columns to the next */
    int64_t sums_stride;
    int64_t depth;
    int adds;            /* to what the sums are */
};

/* `rows` rows of `vectors` vectors at once, all in registers; callers give both as constants. */
ALWAYS_INLINE void multiply_block(const struct product *product, int64_t row, int64_t panel,
                                  int rows, int vectors) {
    const float *left = product->left + row * product->left_stride;
    const float *right = product->right + panel * product->right_panel;
    float *output = product->sums + row * product->sums_stride + panel * PANEL_COLUMNS;
    vfloat sums[6][8];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++)
            sums[i][j] = product->adds ? vload(output + i * product->sums_stride + j * VECTOR_LANES)
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

/* One or two rows: wide blocks, so that there are sums enough to keep the units busy. Columns of
 * neighbouring panels must follow each other. */
static inline int64_t multiply_wide(const struct product *product, int64_t rows, int64_t panels) {
    int64_t panel = 0;
    if (rows == 1)
        for (; panel + 4 <= panels; panel += 4) multiply_block(product, 0, panel, 1, 8);
    for (; panel + 2 <= panels; panel += 2) {
        if (rows == 1)
            multiply_block(product, 0, panel, 1, 4);
        else
            multiply_block(product, 0, panel, 2, 4);
    }
    return panel;
}

/* sums (+)= left @ right over so many panels of columns. */
static inline void multiply(const struct product *product, int64_t rows, int64_t panels) {
    int64_t panel = 0;
    if (rows <= 2 && product->right_panel == PANEL_COLUMNS)
        panel = multiply_wide(product, rows, panels);
    for (; panel < panels; panel++) {
        int64_t row = 0;
        /* Seven and eight are better as four and the rest than as six and the rest. */
        for (; rows - row >= 6 && rows - row != 7 && rows - row != 8; row += 6)
            multiply_block(product, row, panel, 6, 2);
        if (rows - row >= 4) multiply_block(product, row, panel, 4, 2), row += 4;
        switch (rows - row) {
            case 4:
                multiply_block(product, row, panel, 4, 2);
                break;
            case 3:
                multiply_block(product, row, panel, 3, 2);
                break;
            case 2:
                multiply_block(product, row, panel, 2, 2);
                break;
            case 1:
                multiply_block(product, row, panel, 1, 2);
        }
    }
}

#endif
