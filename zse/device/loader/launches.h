/* Kernels that are launched again and again with a few other arguments each time: the layers of a
 * model. Structures are those of ``zse/device/cuda/repetition.py``. */
#ifndef ZSE_LAUNCHES_H
#define ZSE_LAUNCHES_H

#include "loader.h"

/* cuLaunchKernelEx, or what stands in for it: it copies the arguments before it returns. */
typedef int zse_launch(const void *config, void *kernel, void **arguments, void **extra);

struct zse_call {
    const void *config;
    void *kernel;
    void **arguments; /* where each of them lies */
};

/* An argument that changes. */
struct zse_place {
    void *argument;
    int64_t length; /* at most 8 bytes */
};

/* Launch all calls, in order, once a round, each round with its own values (a row of them for each
 * round) at the places. Returns 0, or the first code of the driver, behind which nothing is
 * launched. */
ZSE_EXPORT int32_t zse_repeat(zse_launch *launch, const struct zse_call *calls, int32_t num_calls,
                              const struct zse_place *places, int32_t num_places,
                              const uint64_t *values, int32_t num_rounds);

#endif
