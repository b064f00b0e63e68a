/* Runs a step's operations. One thread, until the pool stands. */
#include <stdlib.h>

#include "pool.h"

struct zse_pool {
    struct zse_worker worker;
};

struct zse_pool *zse_pool_start(int32_t num_threads, int64_t spin_nanoseconds)
{
    (void)num_threads;
    (void)spin_nanoseconds;
    struct zse_pool *pool = calloc(1, sizeof *pool);
    if (!pool) {
        return NULL;
    }
    if (posix_memalign(&pool->worker.scratch, 64, ZSE_SCRATCH_BYTES)) {
        free(pool);
        return NULL;
    }
    pool->worker.scratch_bytes = ZSE_SCRATCH_BYTES;
    pool->worker.num_threads = 1;
    return pool;
}

void zse_pool_stop(struct zse_pool *pool)
{
    if (pool) {
        free(pool->worker.scratch);
        free(pool);
    }
}

void zse_run(struct zse_pool *pool, const struct zse_operation *operations, int64_t num_operations,
             const struct zse_step *step)
{
    for (int64_t index = 0; index < num_operations; index++) {
        const struct zse_operation *operation = &operations[index];
        const struct zse_kernel *kernel = zse_kernels[operation->kind];
        const int64_t num_pieces = kernel->count_pieces(operation, step, 1);
        for (int64_t piece = 0; piece < num_pieces; piece++) {
            kernel->run_piece(operation, step, piece, &pool->worker);
        }
    }
}
