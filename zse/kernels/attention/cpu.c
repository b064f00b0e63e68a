/* Attention over a paged cache: single rows in parts of their keys, prompts in tiles of queries. */
#include "attend.h"
#include "pieces.h"

static int64_t count_pieces(const struct zse_operation *operation, const struct zse_step *step,
                            int num_threads) {
    (void)num_threads;
    int64_t count = 0;
    for (int64_t chunk = 0; chunk < step->num_chunks; chunk++)
        count += count_chunk_pieces(operation->attention, step->chunks + chunk);
    return count;
}

static void run_piece(const struct zse_operation *operation, const struct zse_step *step,
                      int64_t piece, struct zse_worker *worker) {
    const struct zse_rows *chunk = step->chunks;
    for (int64_t count; piece >= (count = count_chunk_pieces(operation->attention, chunk)); chunk++)
        piece -= count;
    if (chunk->num_rows > 1)
        zse_attend_prompt(operation, step, chunk, piece, worker->scratch);
    else
        zse_attend_row(operation, step, chunk, piece, worker->scratch);
}

const struct zse_kernel zse_attend = {count_pieces, run_piece};
