/* The contexts of this process that are measured. */
#ifndef VCUDA_CONTEXT_METER_H
#define VCUDA_CONTEXT_METER_H

#include "cuda/context_registry.h"
#include "cuda/timing_span.h"

/* All of them, for who settles. */
extern struct context_meter *context_meters;

/* That of a context, made if need be; NULL if it cannot be. */
struct context_meter *context_meter_of(const struct current_context *where, CUcontext context);

/* In the child of a fork: there are none, and the lock is nobody's. */
void context_meters_forget(void);

/* The lock of whoever settles, adds to the lists of contexts and streams, or may be ending a context: false if it is
 * taken, for a second where the caller is patient. */
bool meter_lock(bool patient);
void meter_unlock(void);

/* Memory for meters, which are never freed; NULL if there is none. */
void *meter_map(size_t size);

#endif
