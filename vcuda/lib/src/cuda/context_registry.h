/* The contexts of this process: which one a thread works in, what each is charged, and what ends with it.
 *
 * Contexts are known by their ids, because a later one may have the same handle.
 */
#ifndef VCUDA_CONTEXT_REGISTRY_H
#define VCUDA_CONTEXT_REGISTRY_H

#include <stdbool.h>
#include <stdint.h>

#include "cu_types.h"
#include "cuda/allocation_table.h"
#include "cuda/context_id.h"

#define CONTEXT_DEVICES 64 /* no process sees more */

struct current_context {
    CUdevice device;
    int card;         /* of the pages, or CARD_UNKNOWN or CARD_NONE */
    uint64_t owner;   /* the context's id: unlike its handle, never used twice */
    uint64_t changes; /* context_changes() before it was found alive */
};

/* The calling thread's current context; false without one, and the driver will say so. A context that is seen for the
 * first time is charged for what it takes itself. */
bool context_current(struct current_context *where);

/* The context of a stream. The null streams are the current context's. */
bool context_of_stream(CUstream stream, struct current_context *where);

/* The card whose memory this location is; CARD_NONE for the host's. A part of a card, or a location that is not said,
 * counts as the current context's card, without one as the first. */
int card_of_location(CUmemLocation location);

/* A green context: a part of this primary one. */
void context_green(uint64_t id, uint64_t primary);

/* The context that owns what is allocated in this one: itself, or of a green one the primary context. */
uint64_t context_owner(uint64_t id);

/* The id of the device's primary context as seen last, 0 if there was none; and a new one in its place, which returns
 * the one before. */
uint64_t context_primary(CUdevice device);
uint64_t context_set_primary(CUdevice device, uint64_t id);

/* Does the device's primary context exist now? The driver is asked. */
bool context_primary_is_active(CUdevice device);

/* How often contexts went: what a thread remembers of one holds while this stays. */
uint64_t context_changes(void);

/* Contexts are going or gone: what threads remember of theirs is to be asked again. */
void context_forget(void);

/* Give back everything charged for a context that is gone, and for itself. */
void context_ended(uint64_t id);

/* Remember what a context owns (`item->owner`), which was found alive when the number of changes was `changes`, or
 * CONTEXT_UNSEEN. If it has ended since, its memory has too: the charge is given back. What had the item's key ended
 * unseen. */
#define CONTEXT_UNSEEN UINT64_MAX
void context_keep(const struct allocation *item, uint64_t changes);

/* A context that is there: charged now, past the limit too, unless it was before. False if contexts have changed
 * since `changes`: then look again. */
bool context_seen(uint64_t id, int card, uint64_t changes);

#endif
