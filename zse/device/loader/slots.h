/* Slots: a pinned buffer, and the stream that copies from it. See slots.c. */
#ifndef ZSE_SLOTS_H
#define ZSE_SLOTS_H

#include "loader.h"

/* Which function of struct zse_driver failed: their order there. */
enum zse_function {
    ZSE_SET_CURRENT, ZSE_CREATE_STREAM, ZSE_DESTROY_STREAM, ZSE_SYNCHRONIZE, ZSE_COPY,
    ZSE_PIN, ZSE_UNPIN, ZSE_ALLOCATE, ZSE_FREE,
};

struct zse_outcome {
    enum zse_function function; /* that gave the code */
    int32_t code;               /* 0: nothing failed */
};

struct zse_slot {
    void *stream;
    char *buffer;
    int64_t length;
    void *area; /* of a buffer that is pinned where it lies; NULL for one of the driver's */
    const struct zse_chunk *chunk; /* on its way out of the buffer; NULL where none is */
    struct zse_slot *next;         /* of those that are kept */
};

/* Take a kept slot whose buffer is long enough, or make one. The context is current. */
struct zse_outcome zse_slot_open(const struct zse_driver *driver, struct zse_kept *kept,
                                 struct zse_areas *areas, int64_t length, struct zse_slot **slot);
/* Wait for the copy that may still use it; then keep it, or give it back. */
struct zse_outcome zse_slot_close(const struct zse_driver *driver, struct zse_kept *kept,
                                  struct zse_slot *slot);

#endif
