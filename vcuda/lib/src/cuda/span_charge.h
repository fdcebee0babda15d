/* What a finished span cost: its events, or what was expected of it, against what others had of the card meanwhile. */
#ifndef VCUDA_SPAN_CHARGE_H
#define VCUDA_SPAN_CHARGE_H

#include "cuda/timing_span.h"
#include "page.h"

/* GPU time of the span, ns: how much of its interval was new, or what its launches paid where they were not measured.
 * What was measured teaches what such launches cost, and the host is told when it ran. `ended`: its recorded end is
 * reached. Only the thread that settles calls this. */
uint64_t span_charge(struct timing_span *span, const struct vcuda_limits_view *view, bool ended, uint64_t now);

/* What is to be charged beside, of time in which the context surely had work: known_busy.h. */
uint64_t span_charge_known(struct context_meter *context_meter, const struct vcuda_limits_view *view, uint64_t now);

#endif
