/* Reserves the memory that a new context takes on its card. */
#ifndef VCUDA_CONTEXT_H
#define VCUDA_CONTEXT_H

#include "cuda/allocation_table.h"
#include "cuda/charge.h"
#include "cuda/context_end.h"

/* Reserve for a new context. A card that was not given to the container returns CUDA_ERROR_DEVICE_UNAVAILABLE, as a
 * card in another process's exclusive use does; the runtime library then tries the next card. */
CUresult context_reserve(struct charge *charge, CUdevice device);

/* Call around driver calls that may end the context with this id, or a primary context and its green contexts (0: any
 * context). In between the library does not touch that context or its streams. `ended` is the id of the context that
 * was ended; 0: none. */
void context_ending(struct context_end *end, uint64_t id);
void context_over(struct context_end *end, uint64_t ended);

/* The table item for a new context. */
struct allocation context_item(const struct charge *charge, uint64_t id);

#endif
