/* Reserving what a new context takes of its card. */
#ifndef VCUDA_CONTEXT_H
#define VCUDA_CONTEXT_H

#include "cuda/allocation_table.h"
#include "cuda/claim.h"

/* Reserve for a new context. A card that was not given to the container answers as one that others have to themselves:
 * CUDA_ERROR_DEVICE_UNAVAILABLE, at which the runtime library tries the next. */
CUresult context_reserve(struct claim *claim, CUdevice device);

/* The item that remembers it. */
struct allocation context_item(const struct claim *claim, uint64_t id);

#endif
