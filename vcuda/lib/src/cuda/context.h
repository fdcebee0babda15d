/* What a context itself takes of the card, and everything that ends with it. */
#ifndef VCUDA_CONTEXT_H
#define VCUDA_CONTEXT_H

#include "cuda/account.h"
#include "cuda/held.h"

/* Reserve for a new context. A card that was not given to the container answers as one that others have to themselves:
 * CUDA_ERROR_DEVICE_UNAVAILABLE, at which the runtime library tries the next. */
CUresult context_reserve(struct claim *claim, CUdevice device);

/* The item that remembers it. */
struct held context_item(const struct claim *claim, uint64_t id);

/* Give back everything charged for a context that is gone, and for itself. */
void context_ended(uint64_t id);

#endif
