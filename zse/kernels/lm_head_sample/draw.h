/* The draw of a token from adjusted logits: see `cpu_draw.c`. */
#ifndef ZSE_DRAW_H
#define ZSE_DRAW_H

#include "../native/zse.h"
#include "row_scan.h"

/* Candidates that are listed; rows that leave more are read whole again for each look. */
#define LISTED_TOKENS (1 << 16)

/* Memory of a draw, in a worker's scratch. */
struct draw_memory {
    double *sums;    /* [blocks of ZSE_MAX_VOCABULARY]: masses */
    float *logits;   /* [LISTED_TOKENS] */
    int32_t *tokens; /* [LISTED_TOKENS] */
};

/* Draw a token of a row whose largest logit is finite; the temperature is above 0. */
int32_t zse_draw_token(const struct zse_sampling *sampling, const struct scanned_row *row,
                       const struct draw_memory *memory);

#endif
