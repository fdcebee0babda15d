/* Reserving what a new context takes of its card. */
#ifndef VCUDA_CONTEXT_H
#define VCUDA_CONTEXT_H

#include "cuda/allocation_table.h"
#include "cuda/claim.h"

/* Reserve for a new context. A card that was not given to the container answers as one that others have to themselves:
 * CUDA_ERROR_DEVICE_UNAVAILABLE, at which the runtime library tries the next. */
CUresult context_reserve(struct claim *claim, CUdevice device);

/* Around calls that may end contexts: nothing of the library's touches a context or a stream in between. `ended` is the
 * id of the one that did; 0: none. */
void context_ending(void);
void context_over(uint64_t ended);

/* The item that remembers it. */
struct allocation context_item(const struct claim *claim, uint64_t id);

#endif
