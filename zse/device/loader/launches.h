/* Launches a sequence of kernels repeatedly, with a few arguments changed each time: the layers of
 * a model. The structures are mirrored in ``zse/device/cuda/repetition.py``. */
#ifndef ZSE_LAUNCHES_H
#define ZSE_LAUNCHES_H

#include "loader.h"

/* cuLaunchKernelEx, or a function like it, which copies the arguments before it returns. */
typedef int zse_launch(const void *config, void *kernel, void **arguments, void **extra);

struct zse_call {
    const void *config;
    void *kernel;
    void **arguments; /* pointers to the arguments */
};

/* An argument that changes from round to round. */
struct zse_place {
    void *argument;
    int64_t length; /* at most 8 bytes */
};

/* Launch all calls in order, once per round. ``values`` holds a row for each round, one value for
 * each place. Returns 0, or the driver's first error code, after which nothing more is launched. */
ZSE_EXPORT int32_t zse_repeat(zse_launch *launch, const struct zse_call *calls, int32_t num_calls,
                              const struct zse_place *places, int32_t num_places,
                              const uint64_t *values, int32_t num_rounds);

#endif
