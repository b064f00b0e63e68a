/* Attention over keys that come a tile at a time: the largest score so far, the sum of exponentials
 * and the weighted values of each query, all relative to that score. */
#ifndef ZSE_ATTENTION_SOFTMAX_H
#define ZSE_ATTENTION_SOFTMAX_H

#include <float.h>

#include "../native/vector_math.h"
#include "tile.h"

/* Below every score, and finite: differences of two are numbers. */
#define NO_SCORE (-FLT_MAX)

/* What queries have gathered. */
struct gathered {
    float *largest; /* [queries] */
    float *total;   /* [queries]: sum of exponentials */
    float *values;  /* [queries, stride] */
    int64_t stride;
};

static inline void gather_nothing(const struct gathered *gathered, int64_t queries) {
    for (int64_t query = 0; query < queries; query++) {
        gathered->largest[query] = NO_SCORE;
        gathered->total[query] = 0.0f;
    }
    memset(gathered->values, 0, (size_t)(queries * gathered->stride) * sizeof(float));
}

/* Bound scores smoothly; what is bounded keeps its order. */
static inline void cap_scores(float *scores, float softcap) {
    for (int key = 0; key < TILE_KEYS; key += VECTOR_LANES)
        vstore(scores + key, softcap * vtanh(vload(scores + key) / softcap));
}

/* Make exponentials of one query's scores, of which keys first .. end are seen, and make what it
 * has gathered relative to the largest score up to here. */
static inline void weigh_scores(const struct gathered *gathered, int64_t query, float *scores,
                                int64_t first, int64_t end) {
    memset(scores, 0, (size_t)(first < end ? first : TILE_KEYS) * sizeof(float));
    if (first >= end) return;
    int64_t begin = first / VECTOR_LANES * VECTOR_LANES;
    int64_t stop = (end + VECTOR_LANES - 1) / VECTOR_LANES * VECTOR_LANES;
    for (int64_t key = begin; key < first; key++) scores[key] = NO_SCORE;
    for (int64_t key = end; key < stop; key++) scores[key] = NO_SCORE;
    vfloat highest = vload(scores + begin);
    for (int64_t key = begin + VECTOR_LANES; key < stop; key += VECTOR_LANES)
        highest = vlargest(highest, vload(scores + key));
    float before = gathered->largest[query], largest = vmaximum(highest);
    largest = largest > before ? largest : before;
    vfloat sum = {0};
    for (int64_t key = begin; key < stop; key += VECTOR_LANES) {
        vfloat weights = vexp(vload(scores + key) - largest);
        sum += weights;
        vstore(scores + key, weights);
    }
    memset(scores + stop, 0, (size_t)(TILE_KEYS - stop) * sizeof(float));
    float kept = 1.0f;
    if (largest > before) {
        kept = vexp(vbroadcast(before - largest))[0];
        float *values = gathered->values + query * gathered->stride;
        for (int64_t column = 0; column < gathered->stride; column += VECTOR_LANES)
            vstore(values + column, vload(values + column) * kept);
        gathered->largest[query] = largest;
    }
    gathered->total[query] = gathered->total[query] * kept + vsum(sum);
}

/* What one query's attention is: its values over the sum, in which a head's sink counts. */
static inline void finish_query(const float *values, float largest, float total, const float *sink,
                                int64_t value_dim, float *output) {
    float kept = 1.0f;
    if (sink != NULL) {
        float highest = *sink > largest ? *sink : largest;
        kept = vexp(vbroadcast(largest - highest))[0];
        total = total * kept + vexp(vbroadcast(*sink - highest))[0];
    }
    float factor = kept / total;
    for (int64_t column = 0; column < value_dim; column += VECTOR_LANES) {
        int64_t left = value_dim - column;
        vstore_some(output + column, vload_some(values + column, left) * factor, left);
    }
}

#endif
