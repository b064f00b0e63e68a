/* A running load, as the files of this folder see it. */
#ifndef ZSE_LOAD_H
#define ZSE_LOAD_H

#include "loader.h"

#include <pthread.h>
#include <stdbool.h>

struct zse_load {
    struct zse_driver driver;
    struct zse_kept *kept; /* NULL: every slot is freed with the load */
    struct zse_areas *areas;
    struct zse_file file;
    struct zse_chunk *chunks;
    _Atomic int64_t *left; /* per group, the number of chunks that are not on the device yet */
    _Atomic int64_t next;  /* index of the chunk that the next free thread takes */
    int64_t num_chunks;
    int64_t num_groups;
    uint64_t block;
    int64_t buffer_bytes;
    int32_t buffers_per_thread;
    int32_t num_threads;
    struct zse_counters counters;
    pthread_mutex_t lock; /* guards the first failure, and ``news`` */
    pthread_cond_t news;  /* a group is complete, a thread has finished, or the load failed */
    pthread_t *threads;
};

bool zse_is_stopped(struct zse_load *load);
/* Stop all threads; only the first failure is recorded. */
void zse_fail(struct zse_load *load, enum zse_failure failure, int32_t code, int64_t detail);
/* Read the pieces of a chunk, one behind the other; false where the load is stopped. */
bool zse_read_chunk(struct zse_load *load, const struct zse_chunk *chunk, char *to);

#endif
