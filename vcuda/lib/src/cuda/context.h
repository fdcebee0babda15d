/* Reserving what a new context takes of its card. */
#ifndef VCUDA_CONTEXT_H
#define VCUDA_CONTEXT_H

#include "cuda/allocation_table.h"
#include "cuda/charge.h"
#include "cuda/context_end.h"

/* Reserve for a new context. A card that was not given to the container answers as one that others have to themselves:
 * CUDA_ERROR_DEVICE_UNAVAILABLE, at which the runtime library tries the next. */
CUresult context_reserve(struct charge *charge, CUdevice device);

/* Around calls that may end the context with this id, or those of its primary one (0: any): nothing of the library's
 * touches such a context or a stream of it in between. `ended` is the id of the one that did; 0: none. */
void context_ending(struct context_end *end, uint64_t id);
void context_over(struct context_end *end, uint64_t ended);

/* The item that remembers it. */
struct allocation context_item(const struct charge *charge, uint64_t id);

#endif
