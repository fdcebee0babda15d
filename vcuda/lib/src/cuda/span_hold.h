/* Holding an idle stream until a launch and the events round it are in it (launch_wait.h). */
#ifndef VCUDA_SPAN_HOLD_H
#define VCUDA_SPAN_HOLD_H

#include "cu_types.h"
#include "cuda/cost.h"
#include "cuda/gpu_time.h"

/* Is a launch of this kind to be held now? If so, that is spent. */
bool span_hold_wanted(const struct cost *cost, uint64_t now);

/* Hold the stream until the end of the span with these facts has been recorded, though not for long. False: the driver
 * will not. */
bool span_hold(CUstream stream, struct span_facts *facts);

/* The span is over. Was all of it there before its stream went on? */
bool span_hold_succeeded(const struct span_facts *facts);

/* The program has host functions of its own. Those may wait for work, and the driver may call one at a time: nothing is
 * put behind them any more. */
void span_hold_no_more(void);

#endif
