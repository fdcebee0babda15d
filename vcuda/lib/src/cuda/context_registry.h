/* The contexts of this process: which one a thread works in, what each is charged, and what ends with it. Any thread
 * may call.
 *
 * Contexts are identified by their ids, because the driver reuses handles. */
#ifndef VCUDA_CONTEXT_REGISTRY_H
#define VCUDA_CONTEXT_REGISTRY_H

#include <stdbool.h>
#include <stdint.h>

#include "cu_types.h"
#include "cuda/allocation_table.h"
#include "cuda/context_id.h"

#define CONTEXT_DEVICES 64 /* more than a process can see */

struct current_context {
    CUdevice device;
    int card;         /* index in the control pages, or CARD_UNKNOWN or CARD_NONE */
    uint64_t owner;   /* the context's id, never reused (a handle may be) */
    uint64_t changes; /* context_changes() before the context was found alive */
};

/* The calling thread's current context; false if it has none, which the driver then reports. A context seen for the
 * first time is charged for its own memory. */
bool context_current(struct current_context *where);

/* The context of a stream. For the null streams it is the current context. */
bool context_of_stream(CUstream stream, struct current_context *where);

/* The card whose memory this location is; CARD_NONE for host memory. A location that is a part of a card, or
 * unspecified, counts as the current context's card, or as the first card if there is no current context. */
int card_of_location(CUmemLocation location);

/* Record a green context: a part of the primary context `primary`. */
void context_green(uint64_t id, uint64_t primary);

/* The context that owns allocations made in this one: the primary context for a green one, otherwise the context
 * itself. */
uint64_t context_owner(uint64_t id);

/* The last observed id of the device's primary context, 0 if there was none. context_set_primary() replaces it and
 * returns the previous id. */
uint64_t context_primary(CUdevice device);
uint64_t context_set_primary(CUdevice device, uint64_t id);

/* True if the device's primary context exists now; calls the driver. */
bool context_primary_is_active(CUdevice device);

/* Counter of context ends. What a thread has cached about a context is valid while the counter stays equal. */
uint64_t context_changes(void);

/* Contexts are ending or have ended: invalidates what threads have cached about theirs. */
void context_forget(void);

/* Return all charges of a context that has ended, including the one for the context itself. */
void context_ended(uint64_t id);

/* Record an allocation of a context (`item->owner`) that was found alive when the counter was `changes`, or
 * CONTEXT_UNSEEN. If the context has ended since, the charge is returned. A previous item with this key has ended
 * unobserved and is returned too. */
#define CONTEXT_UNSEEN UINT64_MAX
void context_keep(const struct allocation *item, uint64_t changes);

/* Charge a context that exists, even past the limit, unless it is charged already. False if contexts have changed since
 * `changes`: the caller must check the context again. */
bool context_seen(uint64_t id, int card, uint64_t changes);

#endif
