/* What a context itself takes of the card, and everything that ends with it. */
#ifndef VCUDA_CONTEXT_H
#define VCUDA_CONTEXT_H

#include "cuda/account.h"
#include "cuda/allocation_table.h"

/* Reserve for a new context. A card that was not given to the container answers as one that others have to themselves:
 * CUDA_ERROR_DEVICE_UNAVAILABLE, at which the runtime library tries the next. */
CUresult context_reserve(struct claim *claim, CUdevice device);

/* The item that remembers it. */
struct allocation context_item(const struct claim *claim, uint64_t id);

/* A context that a thread works in. One that no call of ours has made came through the driver's export tables, as the
 * CUDA runtime's does: it is charged now, past the limit too, since it is there. */
void context_found(CUcontext context, const struct mapped_context *where);

/* If it is its device's primary context: then whoever resets that ends this one. */
void primary_found(CUcontext context, const struct mapped_context *where);

/* A green context: a part of this primary one. */
void context_green(uint64_t id, uint64_t primary);

/* The context that owns what is allocated in this one: itself, or of a green one the primary context. */
uint64_t context_owner(uint64_t id);

/* Give back everything charged for a context that is gone, and for itself. */
void context_ended(uint64_t id);

#endif
