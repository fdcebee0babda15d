/* The measured contexts of this process. */
#ifndef VCUDA_CONTEXT_METER_H
#define VCUDA_CONTEXT_METER_H

#include "cuda/context_registry.h"
#include "cuda/timing_span.h"

/* Head of the list of all of them, for the settling thread. */
extern struct context_meter *context_meters;

/* The meter of a context, created if necessary; NULL if it cannot be created. */
struct context_meter *context_meter_of(const struct current_context *where, CUcontext context);

/* Call in the child after a fork: empties the list and resets the lock. */
void context_meters_forget(void);

/* Lock for settling, for adding to the lists of contexts and streams, and for calls that may end a context. False if it
 * is taken; a patient caller waits up to a second. */
bool meter_lock(bool patient);
void meter_unlock(void);

/* Allocate memory for meters, which is never freed; NULL if there is none. */
void *meter_map(size_t size);

#endif
