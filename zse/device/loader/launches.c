/* Launches a sequence of kernels repeatedly. See launches.h. */
#include "launches.h"

#include <string.h>

int32_t zse_repeat(zse_launch *launch, const struct zse_call *calls, int32_t num_calls,
                   const struct zse_place *places, int32_t num_places, const uint64_t *values,
                   int32_t num_rounds)
{
    for (int32_t round = 0; round < num_rounds; round++, values += num_places) {
        for (int32_t i = 0; i < num_places; i++)
            memcpy(places[i].argument, &values[i], (size_t)places[i].length);
        for (int32_t i = 0; i < num_calls; i++) {
            const int code = launch(calls[i].config, calls[i].kernel, calls[i].arguments, NULL);
            if (code)
                return code;
        }
    }
    return 0;
}
