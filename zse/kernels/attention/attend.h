/* The two ways of attending; a piece's memory is a worker's scratch. */
#ifndef ZSE_ATTEND_H
#define ZSE_ATTEND_H

#include "../native/zse.h"

/* Work on a piece of a chunk of one row: some heads and a part of their keys. */
void zse_attend_row(const struct zse_operation *operation, const struct zse_step *step,
                    const struct zse_rows *chunk, int64_t piece, float *scratch);

/* Work on a piece of a chunk of several rows: some tokens with one group of heads. */
void zse_attend_prompt(const struct zse_operation *operation, const struct zse_step *step,
                       const struct zse_rows *chunk, int64_t piece, float *scratch);

#endif
