/* The threads of a load. Each reads into its own pinned buffers and copies from each of them on a
 * stream of its own, so a buffer may be filled again once its stream is idle. See loader.h. */
#define _GNU_SOURCE
#include "load.h"
#include "slots.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#define STACK_BYTES (1 << 20) /* the driver's functions run on it */

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

bool zse_is_stopped(struct zse_load *load)
{
    return atomic_load_explicit(&load->counters.failure, memory_order_acquire) != ZSE_NO_FAILURE;
}

void zse_fail(struct zse_load *load, enum zse_failure failure, int32_t code, int64_t detail)
{
    pthread_mutex_lock(&load->lock);
    if (!zse_is_stopped(load)) {
        load->counters.code = code;
        load->counters.detail = detail;
        atomic_store_explicit(&load->counters.failure, failure, memory_order_release);
    }
    pthread_cond_broadcast(&load->news);
    pthread_mutex_unlock(&load->lock);
}

static bool told(struct zse_load *load, struct zse_outcome outcome)
{
    if (outcome.code)
        zse_fail(load, ZSE_DRIVER_FAILED, outcome.code, outcome.function);
    return outcome.code == 0;
}

static struct zse_outcome of(enum zse_function function, int code)
{
    return (struct zse_outcome){function, code};
}

/* --- copying ---------------------------------------------------------------------------------- */

static void landed(struct zse_load *load, const struct zse_chunk *chunk)
{
    atomic_fetch_add(&load->counters.landed_bytes, chunk->length);
    if (atomic_fetch_sub(&load->left[chunk->group], 1) == 1) {
        atomic_fetch_add(&load->counters.num_complete, 1);
        pthread_mutex_lock(&load->lock);
        pthread_cond_broadcast(&load->news);
        pthread_mutex_unlock(&load->lock);
    }
}

static bool wait_for(struct zse_load *load, struct zse_slot *slot)
{
    const struct zse_chunk *chunk = slot->chunk;
    if (!chunk)
        return true;
    slot->chunk = NULL;
    const int64_t began = now();
    if (!told(load, of(ZSE_SYNCHRONIZE, load->driver.synchronize(slot->stream))))
        return false;
    atomic_fetch_add(&load->counters.copy_nanoseconds, now() - began);
    landed(load, chunk);
    return true;
}

static bool copy_chunk(struct zse_load *load, const struct zse_chunk *chunk,
                       struct zse_slot *slot)
{
    const int64_t began = now();
    const bool is_read = zse_read_chunk(load, chunk, slot->buffer);
    atomic_fetch_add(&load->counters.read_nanoseconds, now() - began);
    if (!is_read || zse_is_stopped(load))
        return false;
    const uint64_t to = load->block + (uint64_t)chunk->destination;
    const int code = load->driver.copy(to, slot->buffer, (size_t)chunk->length, slot->stream);
    if (!told(load, of(ZSE_COPY, code)))
        return false;
    slot->chunk = chunk;
    return true;
}

/* Copy chunks until none is left, pinning buffers as they are first needed. Returns the number of
 * open slots, also on failure. */
static int32_t copy_all(struct zse_load *load, struct zse_slot **slots)
{
    int32_t opened = 0, turn = 0;
    while (!zse_is_stopped(load)) {
        const int64_t index = atomic_fetch_add(&load->next, 1);
        if (index >= load->num_chunks)
            break;
        if (opened < load->buffers_per_thread) {
            const int64_t began = now();
            if (!told(load, zse_slot_open(&load->driver, load->kept, load->areas,
                                          load->buffer_bytes, &slots[opened])))
                return opened;
            atomic_fetch_add(&load->counters.pin_nanoseconds, now() - began);
            turn = opened++;
        } else {
            turn = (turn + 1) % load->buffers_per_thread;
        }
        if (!wait_for(load, slots[turn]) || !copy_chunk(load, &load->chunks[index], slots[turn]))
            return opened;
    }
    for (int32_t i = 0; i < opened && !zse_is_stopped(load); i++) {
        turn = (turn + 1) % opened;
        wait_for(load, slots[turn]);
    }
    return opened;
}

static void end_copying(struct zse_load *load)
{
    int64_t last = atomic_load(&load->counters.last_landed_nanoseconds);
    const int64_t time = now();
    while (last < time &&
           !atomic_compare_exchange_weak(&load->counters.last_landed_nanoseconds, &last, time))
        ; /* keep the latest time of all threads */
    pthread_mutex_lock(&load->lock);
    atomic_fetch_sub(&load->counters.num_running, 1);
    pthread_cond_broadcast(&load->news);
    pthread_mutex_unlock(&load->lock);
}

static void *run(void *argument)
{
    struct zse_load *load = argument;
    struct zse_slot **slots = calloc((size_t)load->buffers_per_thread, sizeof *slots);
    int32_t opened = 0;
    if (!slots)
        zse_fail(load, ZSE_NO_MEMORY, ENOMEM, 0);
    else if (told(load, of(ZSE_SET_CURRENT, load->driver.set_current(load->driver.context))))
        opened = copy_all(load, slots);
    end_copying(load);
    const bool is_whole = !zse_is_stopped(load);
    for (int32_t i = 0; i < opened; i++) /* slow: only zse_load_join waits for it */
        told(load, zse_slot_close(&load->driver, is_whole ? load->kept : NULL, slots[i]));
    free(slots);
    return NULL;
}

/* --- what Python calls ------------------------------------------------------------------------ */

static struct zse_load *new_load(const struct zse_order *order)
{
    struct zse_load *load = calloc(1, sizeof *load);
    if (!load)
        return NULL;
    load->driver = *order->driver;
    load->kept = order->kept;
    load->areas = order->areas;
    load->file = *order->file;
    load->num_chunks = order->num_chunks;
    load->num_groups = order->num_groups;
    load->block = order->block;
    load->buffer_bytes = order->buffer_bytes;
    load->buffers_per_thread = order->buffers_per_thread;
    load->chunks = calloc((size_t)order->num_chunks + 1, sizeof *load->chunks);
    load->left = calloc((size_t)order->num_groups + 1, sizeof *load->left);
    load->threads = calloc((size_t)order->num_threads + 1, sizeof *load->threads);
    pthread_mutex_init(&load->lock, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&load->news, &attributes);
    pthread_condattr_destroy(&attributes);
    if (!load->chunks || !load->left || !load->threads) {
        zse_load_end(load);
        return NULL;
    }
    for (int64_t i = 0; i < order->num_chunks; i++) {
        load->chunks[i] = order->chunks[i];
        load->left[order->chunks[i].group]++;
    }
    for (int64_t i = 0; i < order->num_groups; i++)
        load->counters.num_complete += load->left[i] == 0;
    return load;
}

/* Start threads with all signals blocked: those must be handled by the interpreter's threads. */
static void start_threads(struct zse_load *load, int32_t wanted)
{
    sigset_t all, usual;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &usual);
    for (int32_t i = 0; i < wanted; i++) {
        atomic_fetch_add(&load->counters.num_running, 1);
        if (pthread_create(&load->threads[i], &attributes, run, load)) {
            atomic_fetch_sub(&load->counters.num_running, 1);
            break;
        }
        pthread_setname_np(load->threads[i], "zse-load");
        load->num_threads = i + 1;
    }
    pthread_sigmask(SIG_SETMASK, &usual, NULL);
    pthread_attr_destroy(&attributes);
}

struct zse_load *zse_load_start(const struct zse_order *order, int32_t *started)
{
    struct zse_load *load = new_load(order);
    *started = -1;
    if (!load)
        return NULL;
    start_threads(load, order->num_threads);
    *started = load->num_threads;
    if (load->num_threads < order->num_threads) {
        zse_load_end(load);
        return NULL;
    }
    return load;
}

const struct zse_counters *zse_load_counters(const struct zse_load *load)
{
    return &load->counters;
}

int64_t zse_load_left(const struct zse_load *load, int64_t group)
{
    return atomic_load(&load->left[group]);
}

void zse_load_cancel(struct zse_load *load)
{
    zse_fail(load, ZSE_CANCELLED, 0, 0);
}

int32_t zse_load_wait(struct zse_load *load, int64_t seen, int64_t nanoseconds)
{
    const int64_t last = now() + nanoseconds;
    const struct timespec until = {last / INT64_C(1000000000), last % INT64_C(1000000000)};
    pthread_mutex_lock(&load->lock);
    while (load->counters.num_running && load->counters.num_complete <= seen)
        if (pthread_cond_timedwait(&load->news, &load->lock, &until))
            break;
    const int32_t is_over = load->counters.num_running == 0;
    pthread_mutex_unlock(&load->lock);
    return is_over;
}

void zse_load_join(struct zse_load *load)
{
    for (int32_t i = 0; i < load->num_threads; i++)
        pthread_join(load->threads[i], NULL);
    load->num_threads = 0;
}

void zse_load_end(struct zse_load *load)
{
    if (load->num_threads && load->counters.num_running)
        zse_fail(load, ZSE_CANCELLED, 0, 0);
    zse_load_join(load);
    pthread_cond_destroy(&load->news);
    pthread_mutex_destroy(&load->lock);
    free(load->threads);
    free(load->left);
    free(load->chunks);
    free(load);
}

int64_t zse_loader_sizes(int64_t *sizes, int64_t room)
{
    const int64_t found[] = {
        sizeof(struct zse_driver), sizeof(struct zse_file), sizeof(struct zse_chunk),
        sizeof(struct zse_ahead), sizeof(struct zse_counters), sizeof(struct zse_order),
    };
    const int64_t count = sizeof found / sizeof *found;
    for (int64_t i = 0; i < count && i < room; i++)
        sizes[i] = found[i];
    return count;
}
