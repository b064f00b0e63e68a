/* From a file to a device's memory, by threads that never wait for an interpreter.
 *
 * The driver's functions are passed in: nothing of a GPU is linked. Python plans the chunks, looks
 * at the counters and says what an error means. Structures are those of library.py, whose sizes
 * are compared when the library is loaded.
 */
#ifndef ZSE_LOADER_H
#define ZSE_LOADER_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define ZSE_EXPORT __attribute__((visibility("default")))

/* Functions of CUDA's driver API, or of what stands in for it. All return 0 or an error's code. */
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

/* Pinned buffers and streams that loads leave to the next one: making them, and giving them back,
 * takes longer than a small load does. At most so many bytes are kept; NULL without memory. */
struct zse_kept;
ZSE_EXPORT struct zse_kept *zse_keep(const struct zse_driver *driver, int64_t most_bytes);
/* Bytes of the buffers that wait for a load. */
ZSE_EXPORT int64_t zse_kept_bytes(struct zse_kept *kept);
/* Give all of them back; no load may use them any more. Returns the first code of the driver. */
ZSE_EXPORT int32_t zse_drop(struct zse_kept *kept);

/* Memory of huge pages for buffers, which a thread begins to make before there is a device: pages
 * that a machine has never touched take longer than a device does. NULL without memory. */
struct zse_areas;
ZSE_EXPORT struct zse_areas *zse_areas_begin(int32_t count, int64_t length);
/* Give back what no load has taken. */
ZSE_EXPORT void zse_areas_end(struct zse_areas *areas);

struct zse_file {
    int32_t fd;
    int32_t direct_fd;  /* opened with O_DIRECT; -1 where nothing is read past the page cache */
    int64_t size;       /* when it was opened */
    /* Of the whole file, never touched, to ask what is in memory; without it, all that is aligned
     * is read past the cache. */
    const void *mapping;
    int32_t asks_cache; /* whether only what is not in memory is read past the cache */
    int32_t unused;
};

enum zse_state { ZSE_NOT_AHEAD = 0, ZSE_IS_COMING = 1, ZSE_IS_HERE = 2 };

/* A chunk that somebody else reads, or has read, into memory that stays until the load has ended. */
struct zse_ahead {
    void *memory;  /* whole pages, written before the state */
    int32_t state; /* enum zse_state */
    int32_t unused;
};

struct zse_chunk {
    int64_t offset;      /* of the first piece, in the file */
    int64_t length;      /* of all pieces together */
    int64_t destination; /* behind the start of the device's block */
    int64_t stride;      /* from the start of a piece to that of the next, in the file */
    int32_t num_pieces;
    int32_t group;
    struct zse_ahead *ahead; /* NULL where nobody else reads it */
};

enum zse_failure {
    ZSE_NO_FAILURE = 0,
    ZSE_CANCELLED = 1,
    ZSE_DRIVER_FAILED = 2, /* code: the driver's; detail: which function, as in struct zse_driver */
    ZSE_READ_FAILED = 3,   /* code: errno; detail: the offset */
    ZSE_FILE_SHRANK = 4,   /* detail: the offset at which it ended */
    ZSE_NO_MEMORY = 5,     /* code: errno */
};

/* Written by the threads, read by whoever wants to know. */
struct zse_counters {
    _Atomic int64_t landed_bytes;
    _Atomic int64_t direct_bytes;
    _Atomic int64_t buffered_bytes;
    _Atomic int64_t pin_nanoseconds; /* of all threads together, as the next two */
    _Atomic int64_t read_nanoseconds;
    _Atomic int64_t copy_nanoseconds;
    _Atomic int64_t last_landed_nanoseconds; /* CLOCK_MONOTONIC, when the last thread was done */
    _Atomic int64_t num_complete; /* groups that are in the device's memory */
    _Atomic int32_t num_running;  /* threads that copy */
    _Atomic int32_t failure;      /* enum zse_failure; the first one, whose code and detail follow */
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
    struct zse_kept *kept;   /* buffers that outlive a load; NULL where none do */
    struct zse_areas *areas; /* that stay until the load has ended; NULL where there are none */
};

struct zse_load;

/* Start a load; what the order points to is copied, but for memory that is read ahead. Where not
 * all threads can be started, the load is stopped, NULL is returned and ``started`` says how many
 * there were; NULL and -1 mean that there is no memory. */
ZSE_EXPORT struct zse_load *zse_load_start(const struct zse_order *order, int32_t *started);
ZSE_EXPORT const struct zse_counters *zse_load_counters(const struct zse_load *load);
/* Chunks of a group that are not in the device's memory yet. */
ZSE_EXPORT int64_t zse_load_left(const struct zse_load *load, int64_t group);
ZSE_EXPORT void zse_load_cancel(struct zse_load *load);
/* Wait until more groups are complete than ``seen``, no thread copies any more, or the time is over;
 * return whether no thread copies any more. They give their buffers back behind that. */
ZSE_EXPORT int32_t zse_load_wait(struct zse_load *load, int64_t seen, int64_t nanoseconds);
/* Wait until all threads have given their buffers back. */
ZSE_EXPORT void zse_load_join(struct zse_load *load);
/* Stop what still runs, wait for it, and give everything back. */
ZSE_EXPORT void zse_load_end(struct zse_load *load);
ZSE_EXPORT int64_t zse_loader_sizes(int64_t *sizes, int64_t room);

#endif
