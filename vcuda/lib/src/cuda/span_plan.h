/* Which launches are measured, which share a span, and when the end of a span is recorded. Decisions alone: no function
 * here calls the driver or reads a clock. */
#ifndef VCUDA_SPAN_PLAN_H
#define VCUDA_SPAN_PLAN_H

#include "cuda/cost.h"
#include "cuda/gpu_time.h"

/* Which launches are measured by themselves: long ones always, since records are a small part of them; the first
 * COST_FIRST of a kind; and all of them while a window is open. The others are tallied in spans. */
#define SPAN_PLAN_LONG_NS 125000u
#define SPAN_PLAN_VARIES_NS 25000u /* long enough where launches of the kind differ by half of their mean */
#define SPAN_PLAN_TALLY_NS 200000u /* of work in one span, ... */
#define SPAN_PLAN_LAUNCHES 64      /* ... or so many launches */

/* Is each launch of this kind measured, whether or not a window is open? */
static inline bool span_plan_is_long(const struct cost *cost) {
    uint64_t ns = cost_ns(cost), spread = __atomic_load_n(&cost->spread_ns, __ATOMIC_RELAXED);
    return ns >= SPAN_PLAN_LONG_NS || (ns >= SPAN_PLAN_VARIES_NS && spread > ns / 2);
}

static inline bool span_plan_is_alone(const struct cost *cost, bool window_is_open) {
    return window_is_open || span_plan_is_long(cost) || cost_seen(cost) < COST_FIRST;
}

/* Does the tallied span end with the launch just made? */
static inline bool span_plan_is_full(uint64_t expected_ns, uint32_t launches) {
    return expected_ns >= SPAN_PLAN_TALLY_NS || launches >= SPAN_PLAN_LAUNCHES;
}

/* On a card with protected and best-effort containers the library has to see when work ends: a gate stays closed until
 * then, and what is in flight at a gate is limited. There the end of a tallied span is recorded too, and a launch made
 * so long after the last record on its stream ends its span. */
#define SPAN_PLAN_MARK_NS 200000u

#endif
