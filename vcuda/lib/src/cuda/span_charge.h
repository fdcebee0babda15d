/* Computes what a finished span cost: from its events, or from its expected cost, less what other containers had of the
 * card meanwhile. */
#ifndef VCUDA_SPAN_CHARGE_H
#define VCUDA_SPAN_CHARGE_H

#include "cuda/timing_span.h"
#include "page.h"

/* GPU time of the span in ns: the part of its interval that was not covered yet, or what its launches paid if they were
 * not measured. A measured span updates the cost of its kind, and its interval is published to the host. `ended`: its
 * recorded end has been reached. Settling thread only. */
uint64_t span_charge(struct timing_span *span, const struct vcuda_limits_view *view, bool ended, uint64_t now);

/* Additional charge for time in which the context surely had work: see known_busy.h. */
uint64_t span_charge_known(struct context_meter *context_meter, const struct vcuda_limits_view *view, uint64_t now);

#endif
