/* RMSNorm and LayerNorm of one row, for residual streams and for single heads. */
#ifndef ZSE_ROW_NORM_H
#define ZSE_ROW_NORM_H

#include "vector.h"
#include "zse.h"

/* The sum of (value - offset)^power over a row, power 1 or 2; in four chains, so that additions
 * need not wait for each other, joined in one order. */
ALWAYS_INLINE float sum_of_powers(const float *row, int64_t width, float offset, int power) {
    vfloat chains[4] = {{0}, {0}, {0}, {0}};
    int64_t column = 0;
    for (; column + 4 * VECTOR_LANES <= width; column += 4 * VECTOR_LANES)
        for (int chain = 0; chain < 4; chain++) {
            vfloat values = vload(row + column + chain * VECTOR_LANES) - offset;
            chains[chain] += power == 2 ? values * values : values;
        }
    float sum = vsum((chains[0] + chains[1]) + (chains[2] + chains[3]));
    for (; column < width; column++) {
        float value = row[column] - offset;
        sum += power == 2 ? value * value : value;
    }
    return sum;
}

/* output = scale * norm(row); the two may be the same. */
static inline void normalize_row(const float *row, int64_t width, const struct zse_norm *norm,
                                 float scale, float *output) {
    float count = (float)width;
    float mean = norm->subtracts_mean ? sum_of_powers(row, width, 0.0f, 1) / count : 0.0f;
    float variance = sum_of_powers(row, width, mean, 2) / count;
    float inverse = 1.0f / __builtin_sqrtf(variance + norm->epsilon);
    for (int64_t column = 0; column < width; column += VECTOR_LANES) {
        int64_t left = width - column;
        vfloat values = (vload_some(row + column, left) - mean) * inverse;
        values *= vload_some(norm->weight + column, left);
        if (norm->bias != NULL) values += vload_some(norm->bias + column, left);
        vstore_some(output + column, values * scale, left);
    }
}

/* output = RMSNorm(row), of no weight. */
static inline void normalize_plainly(const float *row, int64_t width, float epsilon,
                                     float *output) {
    float mean = sum_of_powers(row, width, 0.0f, 2) / (float)width;
    float inverse = 1.0f / __builtin_sqrtf(mean + epsilon);
    for (int64_t column = 0; column < width; column += VECTOR_LANES) {
        int64_t left = width - column;
        vstore_some(output + column, vload_some(row + column, left) * inverse, left);
    }
}

#endif
