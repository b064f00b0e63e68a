/* Copies a file to a device's memory by native threads, which never take Python's GIL.
 *
 * The driver's functions are passed in as pointers, so the library links against no GPU driver.
 * Python plans the chunks, polls the counters and turns failures into exceptions. The structures
 * are mirrored in structs.py; library.py compares their sizes when it loads the library.
 */
#ifndef ZSE_LOADER_H
#define ZSE_LOADER_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define ZSE_EXPORT __attribute__((visibility("default")))

/* Functions of CUDA's driver API, or of a driver with the same interface. Each returns 0, or an
 * error code. */
struct zse_driver {
    int (*set_current)(void *context);
    int (*create_stream)(void **stream, unsigned flags);
    int (*destroy_stream)(void *stream);
    int (*synchronize)(void *stream);
    int (*copy)(uint64_t to, const void *from, size_t length, void *stream);
    int (*pin)(void *memory, size_t length, unsigned flags);
    int (*unpin)(void *memory);
    int (*allocate)(void **memory, size_t length, unsigned flags);
    int (*free)(void *memory);
    void *context;
};

/* A cache of pinned buffers, each with its stream, that loads take from and return to: creating
 * and freeing them takes longer than a small load. It holds at most ``most_bytes``. Returns NULL
 * when out of memory. */
struct zse_kept;
ZSE_EXPORT struct zse_kept *zse_keep(const struct zse_driver *driver, int64_t most_bytes);
/* Bytes of the buffers in the cache that no load uses now. */
ZSE_EXPORT int64_t zse_kept_bytes(struct zse_kept *kept);
/* Free the cache and its buffers; no load may use it any more. Returns the first error code of the
 * driver, or 0. */
ZSE_EXPORT int32_t zse_drop(struct zse_kept *kept);

/* Areas of huge pages for buffers. A thread starts to fault them in before the device is open,
 * since pages that the machine has never touched take longer than opening it. Returns NULL when out
 * of memory. */
struct zse_areas;
ZSE_EXPORT struct zse_areas *zse_areas_begin(int32_t count, int64_t length);
/* Stop the thread and unmap the areas that no load has taken. */
ZSE_EXPORT void zse_areas_end(struct zse_areas *areas);

struct zse_file {
    int32_t fd;
    int32_t direct_fd;  /* opened with O_DIRECT; -1: every read goes through the page cache */
    int64_t size;       /* when it was opened */
    /* A mapping of the whole file for mincore(), which tells what is in the page cache; it is never
     * read through. NULL: the kernel cannot be asked. */
    const void *mapping;
    int32_t asks_cache; /* 1: O_DIRECT for chunks that are not cached; 0: for all aligned ones */
    int32_t unused;
};

enum zse_state { ZSE_NOT_AHEAD = 0, ZSE_IS_COMING = 1, ZSE_IS_HERE = 2 };

/* A chunk that another thread prefetches into memory that stays valid until the load has ended. */
struct zse_ahead {
    void *memory;  /* whole pages; set before the state says that it is there */
    int32_t state; /* enum zse_state */
    int32_t unused;
};

struct zse_chunk {
    int64_t offset;      /* of the first piece, in the file */
    int64_t length;      /* of all pieces together */
    int64_t destination; /* offset within the device's block */
    int64_t stride;      /* in the file, from the start of a piece to the start of the next */
    int32_t num_pieces;
    int32_t group;
    struct zse_ahead *ahead; /* NULL: nobody prefetches it */
};

enum zse_failure {
    ZSE_NO_FAILURE = 0,
    ZSE_CANCELLED = 1,
    ZSE_DRIVER_FAILED = 2, /* code: the driver's; detail: which function, as in struct zse_driver */
    ZSE_READ_FAILED = 3,   /* code: errno; detail: the offset */
    ZSE_FILE_SHRANK = 4,   /* detail: the offset at which it ended */
    ZSE_NO_MEMORY = 5,     /* code: errno */
};

/* Progress of a load: written by its threads, and safe to read at any time. */
struct zse_counters {
    _Atomic int64_t landed_bytes;
    _Atomic int64_t direct_bytes;
    _Atomic int64_t buffered_bytes;
    _Atomic int64_t pin_nanoseconds; /* summed over all threads, as are the next two */
    _Atomic int64_t read_nanoseconds;
    _Atomic int64_t copy_nanoseconds;
    _Atomic int64_t last_landed_nanoseconds; /* CLOCK_MONOTONIC, when the last thread finished */
    _Atomic int64_t num_complete; /* groups that are wholly in the device's memory */
    _Atomic int32_t num_running;  /* threads that still copy */
    _Atomic int32_t failure;      /* enum zse_failure: the first one; its code and detail follow */
    int32_t code;
    int32_t unused;
    int64_t detail;
};

struct zse_order {
    const struct zse_driver *driver;
    const struct zse_file *file;
    const struct zse_chunk *chunks;
    int64_t num_chunks;
    int64_t num_groups;
    uint64_t block; /* address of the device's block */
    int64_t buffer_bytes;
    int32_t num_threads;
    int32_t buffers_per_thread;
    struct zse_kept *kept;   /* cache to take buffers from and return them to; NULL: none */
    struct zse_areas *areas; /* valid until the load has ended; NULL: none */
};

struct zse_load;

/* Start a load. What the order points to is copied, except for prefetched memory. If not all
 * threads can be started, the load is stopped and NULL returned, and ``started`` says how many
 * there were; NULL with -1 means out of memory. */
ZSE_EXPORT struct zse_load *zse_load_start(const struct zse_order *order, int32_t *started);
ZSE_EXPORT const struct zse_counters *zse_load_counters(const struct zse_load *load);
/* Number of chunks of a group that are not in the device's memory yet. */
ZSE_EXPORT int64_t zse_load_left(const struct zse_load *load, int64_t group);
ZSE_EXPORT void zse_load_cancel(struct zse_load *load);
/* Wait until more than ``seen`` groups are complete, no thread copies any more, or the time is up.
 * Returns whether no thread copies any more; they may still be freeing their buffers then. */
ZSE_EXPORT int32_t zse_load_wait(struct zse_load *load, int64_t seen, int64_t nanoseconds);
/* Wait until all threads have freed their buffers and ended. */
ZSE_EXPORT void zse_load_join(struct zse_load *load);
/* Stop the threads that still run, wait for them, and free the load. */
ZSE_EXPORT void zse_load_end(struct zse_load *load);
ZSE_EXPORT int64_t zse_loader_sizes(int64_t *sizes, int64_t room);

#endif
