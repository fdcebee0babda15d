/* Holds an idle stream until a launch and the events around it are in the stream (launch_wait.h). */
#ifndef VCUDA_SPAN_HOLD_H
#define VCUDA_SPAN_HOLD_H

#include "cu_types.h"
#include "cuda/cost.h"
#include "cuda/gpu_time.h"

/* True if a launch of this kind should be held now; this spends holding budget. */
bool span_hold_wanted(const struct cost *cost, uint64_t now);

/* Hold the stream, briefly, until the end of the span with these facts has been recorded. False: the driver refuses. */
bool span_hold(CUstream stream, struct span_facts *facts);

/* Call after the span is over. True if all of it was in the stream before the stream was released. */
bool span_hold_succeeded(const struct span_facts *facts);

/* The program uses host functions. They may wait for work, and the driver may call one at a time, so the library stops
 * putting its own in front of launches. */
void span_hold_no_more(void);

#endif
