/* Chunks that are read into plain memory while the device is still being opened. See loader.h. */
#define _GNU_SOURCE
#include "load.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#define PAGE INT64_C(4096)
#define HUGE_PAGE (INT64_C(2) << 20)
#define PORTABLE 1
/* Pinning a piece holds up the threads that copy out of it, so several pieces are under way. */
#define PIECE_BYTES (INT64_C(16) << 20)
#define LOOK_NANOSECONDS 50000

enum pin_state { PLAIN, PINNED, CANNOT_BE };

struct zse_piece {
    pthread_mutex_t lock;
    char *memory;
    int64_t length;
    enum pin_state state;
};

struct zse_readahead {
    struct zse_load reading; /* what reading needs of a load */
    struct zse_ahead *each;
    struct zse_piece *pieces;
    int64_t count;
    int64_t num_pieces;
    char *area;
    int64_t area_bytes;
    _Atomic int64_t next;
    atomic_int is_over;
    int32_t num_threads;
    pthread_t threads[];
};

static int64_t rounded_up(int64_t value, int64_t to)
{
    return (value + to - 1) / to * to;
}

static void *read_all(void *argument)
{
    struct zse_readahead *ahead = argument;
    while (!atomic_load(&ahead->is_over)) {
        const int64_t index = atomic_fetch_add(&ahead->next, 1);
        if (index >= ahead->count)
            break;
        struct zse_ahead *one = &ahead->each[index];
        __atomic_store_n(&one->state, ZSE_IS_COMING, __ATOMIC_RELEASE);
        const bool is_read =
            zse_read_chunk(&ahead->reading, &ahead->reading.chunks[index], one->memory);
        /* Of one that cannot be read the load says why. */
        __atomic_store_n(&one->state, is_read ? ZSE_IS_HERE : ZSE_NOT_AHEAD, __ATOMIC_RELEASE);
    }
    return NULL;
}

/* --- where the chunks go ---------------------------------------------------------------------- */

/* Lay chunks side by side, in pieces that begin with a huge page; return how many bytes they are.
 * Without memory to lay them into nothing is written but how many pieces there are. */
static int64_t lay(struct zse_readahead *ahead, char *memory)
{
    int64_t begin = 0, used = 0, number = 0;
    for (int64_t i = 0; i < ahead->count; i++) {
        if (memory) {
            ahead->each[i].memory = memory + begin + used;
            ahead->each[i].piece = &ahead->pieces[number];
        }
        used = rounded_up(used + ahead->reading.chunks[i].length, PAGE);
        if (used < PIECE_BYTES && i + 1 < ahead->count)
            continue;
        if (memory) {
            ahead->pieces[number].memory = memory + begin;
            ahead->pieces[number].length = used;
            pthread_mutex_init(&ahead->pieces[number].lock, NULL);
        }
        begin += rounded_up(used, HUGE_PAGE);
        used = 0;
        number++;
    }
    ahead->num_pieces = number;
    return begin;
}

static bool make_room(struct zse_readahead *ahead)
{
    ahead->area_bytes = lay(ahead, NULL) + HUGE_PAGE;
    ahead->pieces = calloc((size_t)ahead->num_pieces + 1, sizeof *ahead->pieces);
    ahead->area = mmap(NULL, (size_t)ahead->area_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (ahead->area == MAP_FAILED)
        ahead->area = NULL;
    if (!ahead->pieces || !ahead->area) {
        ahead->num_pieces = 0;
        return false;
    }
    madvise(ahead->area, (size_t)ahead->area_bytes, MADV_HUGEPAGE);
    lay(ahead, (char *)rounded_up((intptr_t)ahead->area, HUGE_PAGE));
    return true;
}

/* --- what Python calls ------------------------------------------------------------------------ */

struct zse_readahead *zse_readahead_begin(const struct zse_file *file,
                                          const struct zse_chunk *chunks, int64_t count,
                                          int32_t num_threads)
{
    struct zse_readahead *ahead =
        calloc(1, sizeof *ahead + (size_t)num_threads * sizeof ahead->threads[0]);
    sigset_t all, usual;
    if (!ahead)
        return NULL;
    ahead->count = count;
    ahead->reading.file = *file;
    ahead->reading.chunks = calloc((size_t)count + 1, sizeof *chunks);
    ahead->each = calloc((size_t)count + 1, sizeof *ahead->each);
    pthread_mutex_init(&ahead->reading.lock, NULL);
    pthread_cond_init(&ahead->reading.news, NULL);
    if (ahead->reading.chunks)
        for (int64_t i = 0; i < count; i++)
            ahead->reading.chunks[i] = chunks[i];
    if (!ahead->reading.chunks || !ahead->each || !make_room(ahead)) {
        zse_readahead_end(ahead, NULL);
        return NULL;
    }
    sigfillset(&all); /* signals must be handled by the interpreter's threads */
    pthread_sigmask(SIG_SETMASK, &all, &usual);
    while (ahead->num_threads < num_threads &&
           !pthread_create(&ahead->threads[ahead->num_threads], NULL, read_all, ahead))
        ahead->num_threads++;
    pthread_sigmask(SIG_SETMASK, &usual, NULL);
    return ahead;
}

struct zse_ahead *zse_readahead_stop(struct zse_readahead *ahead)
{
    atomic_store(&ahead->is_over, 1);
    return ahead->each;
}

void zse_readahead_end(struct zse_readahead *ahead, const struct zse_driver *driver)
{
    atomic_store(&ahead->is_over, 1);
    for (int32_t i = 0; i < ahead->num_threads; i++)
        pthread_join(ahead->threads[i], NULL);
    if (driver)
        driver->set_current(driver->context);
    for (int64_t i = 0; i < ahead->num_pieces; i++) {
        if (driver && ahead->pieces[i].state == PINNED)
            driver->unpin(ahead->pieces[i].memory);
        pthread_mutex_destroy(&ahead->pieces[i].lock);
    }
    if (ahead->area)
        munmap(ahead->area, (size_t)ahead->area_bytes);
    pthread_cond_destroy(&ahead->reading.news);
    pthread_mutex_destroy(&ahead->reading.lock);
    free(ahead->reading.chunks);
    free(ahead->pieces);
    free(ahead->each);
    free(ahead);
}

/* --- what a load calls ------------------------------------------------------------------------ */

static bool is_pinned(const struct zse_driver *driver, struct zse_piece *piece)
{
    pthread_mutex_lock(&piece->lock);
    if (piece->state == PLAIN) {
        const int code = driver->pin(piece->memory, (size_t)piece->length, PORTABLE);
        piece->state = code ? CANNOT_BE : PINNED;
    }
    pthread_mutex_unlock(&piece->lock);
    return piece->state == PINNED;
}

const void *zse_pinned_ahead(struct zse_load *load, const struct zse_chunk *chunk)
{
    const struct timespec pause = {0, LOOK_NANOSECONDS};
    struct zse_ahead *ahead = chunk->ahead;
    int32_t state;
    if (!ahead || !ahead->piece)
        return NULL;
    while ((state = __atomic_load_n(&ahead->state, __ATOMIC_ACQUIRE)) == ZSE_IS_COMING) {
        if (zse_is_stopped(load))
            return NULL;
        nanosleep(&pause, NULL);
    }
    if (state != ZSE_IS_HERE || !is_pinned(&load->driver, ahead->piece))
        return NULL;
    atomic_fetch_add(&load->counters.buffered_bytes, chunk->length);
    return ahead->memory;
}
