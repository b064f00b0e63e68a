/* Slots are made when a thread first needs one; afterwards they are cached for the next load, or
 * freed. */
#define _GNU_SOURCE
#include "slots.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

#define HUGE_PAGE (INT64_C(2) << 20)
#define STREAM_NON_BLOCKING 1
#define PORTABLE 1
#define NO_MEMORY 2 /* CUDA_ERROR_OUT_OF_MEMORY */

struct zse_kept {
    struct zse_driver driver;
    pthread_mutex_t lock;
    struct zse_slot *first;
    int64_t bytes;
    int64_t most_bytes;
};

static const struct zse_outcome well = {ZSE_SET_CURRENT, 0};

/* --- kept ------------------------------------------------------------------------------------- */

struct zse_kept *zse_keep(const struct zse_driver *driver, int64_t most_bytes)
{
    struct zse_kept *kept = calloc(1, sizeof *kept);
    if (!kept)
        return NULL;
    kept->driver = *driver;
    kept->most_bytes = most_bytes;
    pthread_mutex_init(&kept->lock, NULL);
    return kept;
}

int64_t zse_kept_bytes(struct zse_kept *kept)
{
    pthread_mutex_lock(&kept->lock);
    const int64_t found = kept->bytes;
    pthread_mutex_unlock(&kept->lock);
    return found;
}

/* Take the smallest cached slot that is large enough; NULL if there is none. */
static struct zse_slot *take(struct zse_kept *kept, int64_t length)
{
    struct zse_slot **best = NULL, *found = NULL;
    pthread_mutex_lock(&kept->lock);
    for (struct zse_slot **at = &kept->first; *at; at = &(*at)->next)
        if ((*at)->length >= length && (!best || (*at)->length < (*best)->length))
            best = at;
    if (best) {
        found = *best;
        *best = found->next;
        kept->bytes -= found->length;
    }
    pthread_mutex_unlock(&kept->lock);
    return found;
}

/* Put a slot into the cache; if that is full, in place of a smaller one. Returns the slot that has
 * to be freed instead, or NULL. */
static struct zse_slot *put(struct zse_kept *kept, struct zse_slot *slot)
{
    struct zse_slot *out = slot;
    pthread_mutex_lock(&kept->lock);
    if (kept->bytes + slot->length <= kept->most_bytes) {
        slot->next = kept->first;
        kept->first = slot;
        kept->bytes += slot->length;
        out = NULL;
    } else if (kept->first && kept->first->length < slot->length &&
               kept->bytes - kept->first->length + slot->length <= kept->most_bytes) {
        out = kept->first;
        slot->next = out->next;
        kept->first = slot;
        kept->bytes += slot->length - out->length;
    }
    pthread_mutex_unlock(&kept->lock);
    return out;
}

/* --- areas ------------------------------------------------------------------------------------ */

enum area_state { UNTOUCHED, TOUCHED, TAKEN };

struct zse_areas {
    pthread_t thread;
    int64_t length; /* usable bytes of each area, behind its alignment */
    int32_t count;
    atomic_int is_over; /* set to stop the thread */
    struct {
        char *memory;
        atomic_int state;
    } each[];
};

static char *aligned(char *area)
{
    return (char *)(((uintptr_t)area + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
}

/* Map memory that the kernel may back by huge pages; no page is present yet. NULL on failure. */
static char *map(int64_t length)
{
    char *area = mmap(NULL, (size_t)(length + HUGE_PAGE), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area == MAP_FAILED)
        return NULL;
    madvise(area, (size_t)(length + HUGE_PAGE), MADV_HUGEPAGE);
    return area;
}

static void touch(char *area, int64_t length)
{
    for (int64_t offset = 0; offset < length; offset += HUGE_PAGE)
        *(volatile char *)(aligned(area) + offset) = 0; /* faults the page in */
}

static void *touch_all(void *argument)
{
    struct zse_areas *areas = argument;
    for (int32_t i = 0; i < areas->count && !atomic_load(&areas->is_over); i++) {
        areas->each[i].memory = map(areas->length);
        if (!areas->each[i].memory)
            break;
        touch(areas->each[i].memory, areas->length);
        atomic_store(&areas->each[i].state, TOUCHED);
    }
    return NULL;
}

struct zse_areas *zse_areas_begin(int32_t count, int64_t length)
{
    struct zse_areas *areas = calloc(1, sizeof *areas + (size_t)count * sizeof areas->each[0]);
    sigset_t all, usual;
    if (!areas)
        return NULL;
    areas->length = (length + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    areas->count = count;
    sigfillset(&all); /* signals must be handled by the interpreter's threads */
    pthread_sigmask(SIG_SETMASK, &all, &usual);
    const int code = pthread_create(&areas->thread, NULL, touch_all, areas);
    pthread_sigmask(SIG_SETMASK, &usual, NULL);
    if (!code)
        return areas;
    free(areas);
    return NULL;
}

void zse_areas_end(struct zse_areas *areas)
{
    atomic_store(&areas->is_over, 1);
    pthread_join(areas->thread, NULL);
    for (int32_t i = 0; i < areas->count; i++)
        if (areas->each[i].memory && atomic_load(&areas->each[i].state) != TAKEN)
            munmap(areas->each[i].memory, (size_t)(areas->length + HUGE_PAGE));
    free(areas);
}

/* Take an area whose pages are present; NULL if there is none yet. */
static char *take_area(struct zse_areas *areas, int64_t length)
{
    for (int32_t i = 0; areas && areas->length >= length && i < areas->count; i++) {
        int expected = TOUCHED;
        if (atomic_compare_exchange_strong(&areas->each[i].state, &expected, TAKEN))
            return areas->each[i].memory;
    }
    return NULL;
}

/* --- made, and given back --------------------------------------------------------------------- */

/* Give a slot a buffer of huge pages, which the driver registers thirty times faster than it
 * allocates pinned memory of its own. False for small buffers, or if it fails. */
static bool pin_pages(const struct zse_driver *driver, struct zse_areas *areas,
                      struct zse_slot *slot)
{
    if (slot->length < HUGE_PAGE)
        return false;
    char *area = take_area(areas, slot->length);
    if (area) {
        slot->length = areas->length;
    } else {
        area = map(slot->length);
        if (!area)
            return false;
        touch(area, slot->length);
    }
    if (driver->pin(aligned(area), (size_t)slot->length, PORTABLE)) {
        munmap(area, (size_t)(slot->length + HUGE_PAGE));
        return false;
    }
    slot->area = area;
    slot->buffer = aligned(area);
    return true;
}

struct zse_outcome zse_slot_open(const struct zse_driver *driver, struct zse_kept *kept,
                                 struct zse_areas *areas, int64_t length, struct zse_slot **out)
{
    void *memory = NULL;
    struct zse_slot *slot = kept ? take(kept, length) : NULL;
    *out = slot;
    if (slot)
        return well;
    slot = calloc(1, sizeof *slot);
    if (!slot)
        return (struct zse_outcome){ZSE_ALLOCATE, NO_MEMORY};
    slot->length = length;
    const int code = driver->create_stream(&slot->stream, STREAM_NON_BLOCKING);
    if (code) {
        free(slot);
        return (struct zse_outcome){ZSE_CREATE_STREAM, code};
    }
    if (!pin_pages(driver, areas, slot)) {
        slot->length = length; /* it was the length of an area that could not be pinned */
        const int failure = driver->allocate(&memory, (size_t)length, PORTABLE);
        if (failure) {
            driver->destroy_stream(slot->stream);
            free(slot);
            return (struct zse_outcome){ZSE_ALLOCATE, failure};
        }
        slot->buffer = memory;
    }
    *out = slot;
    return well;
}

/* Free a slot that nothing uses any more. Returns ``so_far`` if that is an error, else its own. */
static struct zse_outcome give_back(const struct zse_driver *driver, struct zse_slot *slot,
                                    struct zse_outcome so_far)
{
    const int destroyed = driver->destroy_stream(slot->stream);
    const int freed = slot->area ? driver->unpin(slot->buffer) : driver->free(slot->buffer);
    const enum zse_function freeing = slot->area ? ZSE_UNPIN : ZSE_FREE;
    if (slot->area)
        munmap(slot->area, (size_t)(slot->length + HUGE_PAGE));
    free(slot);
    if (so_far.code)
        return so_far;
    if (destroyed)
        return (struct zse_outcome){ZSE_DESTROY_STREAM, destroyed};
    return (struct zse_outcome){freeing, freed};
}

struct zse_outcome zse_slot_close(const struct zse_driver *driver, struct zse_kept *kept,
                                  struct zse_slot *slot)
{
    const struct zse_outcome ended = {ZSE_SYNCHRONIZE, driver->synchronize(slot->stream)};
    slot->chunk = NULL;
    if (kept && !ended.code)
        slot = put(kept, slot);
    return slot ? give_back(driver, slot, ended) : ended;
}

int32_t zse_drop(struct zse_kept *kept)
{
    struct zse_outcome told = {ZSE_SET_CURRENT, kept->driver.set_current(kept->driver.context)};
    while (kept->first) {
        struct zse_slot *slot = kept->first;
        kept->first = slot->next;
        told = give_back(&kept->driver, slot, told);
    }
    pthread_mutex_destroy(&kept->lock);
    free(kept);
    return told.code;
}
