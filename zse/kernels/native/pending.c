/* Kernels that are not written yet: each gives way to the one of its name. */
#include "zse.h"

#define PENDING(name) __attribute__((weak)) const struct zse_kernel name = {0}
PENDING(zse_rotary);
PENDING(zse_norm_rows);
PENDING(zse_rope_store);
PENDING(zse_attend);
PENDING(zse_activate);
PENDING(zse_add);
PENDING(zse_sample);
