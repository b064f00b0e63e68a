/* Between the library's own files: the kernel of each kind of operation. */
#ifndef ZSE_POOL_H
#define ZSE_POOL_H

#include "zse.h"

extern const struct zse_kernel *const zse_kernels[ZSE_NUM_KINDS];

#endif
