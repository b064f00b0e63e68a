/* A slot is a pinned buffer with a stream of its own that copies from it. See slots.c. */
#ifndef ZSE_SLOTS_H
#define ZSE_SLOTS_H

#include "loader.h"

/* Which function of struct zse_driver failed, in the order of its members. */
enum zse_function {
    ZSE_SET_CURRENT, ZSE_CREATE_STREAM, ZSE_DESTROY_STREAM, ZSE_SYNCHRONIZE, ZSE_COPY,
    ZSE_PIN, ZSE_UNPIN, ZSE_ALLOCATE, ZSE_FREE,
};

struct zse_outcome {
    enum zse_function function; /* the one that returned the code */
    int32_t code;               /* 0: nothing failed */
};

struct zse_slot {
    void *stream;
    char *buffer;
    int64_t length;
    void *area; /* our mapping that the buffer lies in; NULL: the driver allocated the buffer */
    const struct zse_chunk *chunk; /* being copied from the buffer; NULL: none */
    struct zse_slot *next;         /* in the cache's list */
};

/* Take a slot with a large enough buffer from the cache, or make one. The calling thread has the
 * device's context current. */
struct zse_outcome zse_slot_open(const struct zse_driver *driver, struct zse_kept *kept,
                                 struct zse_areas *areas, int64_t length, struct zse_slot **slot);
/* Wait for the copy that may still use it, then return it to the cache or free it. */
struct zse_outcome zse_slot_close(const struct zse_driver *driver, struct zse_kept *kept,
                                  struct zse_slot *slot);

#endif
