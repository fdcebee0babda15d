/* Decides which launches are measured, which share a span, and when the end of a span is recorded. No function here
 * calls the driver or reads a clock. */
#ifndef VCUDA_SPAN_PLAN_H
#define VCUDA_SPAN_PLAN_H

#include "cuda/cost.h"
#include "cuda/gpu_time.h"

/* Launches measured by themselves: long ones, for which recording costs little; the first COST_FIRST of a kind; all
 * launches while a window is open; and launches of a kind whose duration varies by half of its mean, while no other
 * stream of the process has work (beside other unmeasured launches they could not be told apart). All other launches
 * are tallied in spans. */
#define SPAN_PLAN_LONG_NS 125000u
#define SPAN_PLAN_VARIES_NS 25000u /* shorter launches are measured in windows only, however much they vary */
#define SPAN_PLAN_TALLY_NS 200000u /* expected work in one tallied span, ... */
#define SPAN_PLAN_LAUNCHES 64      /* ... and number of launches in it, at most */

/* True if each launch of this kind is measured, whatever runs beside it. */
static inline bool span_plan_is_long(const struct cost *cost) {
    return cost_ns(cost) >= SPAN_PLAN_LONG_NS;
}

static inline bool span_plan_varies(const struct cost *cost) {
    uint64_t ns = cost_ns(cost), spread = __atomic_load_n(&cost->spread_ns, __ATOMIC_RELAXED);
    return ns >= SPAN_PLAN_VARIES_NS && spread > ns / 2;
}

static inline bool span_plan_is_alone(const struct cost *cost, bool window_is_open) {
    return window_is_open || span_plan_is_long(cost) || cost_seen(cost) < COST_FIRST;
}

/* True if a launch that is measured, now or `early` in a window, may have run beside unmeasured ones. */
static inline bool span_plan_may_be_beside(const struct cost *cost, bool window_is_open, bool early) {
    return !span_plan_is_long(cost) && (window_is_open ? early : cost_seen(cost) >= COST_FIRST);
}

/* True if the tallied span ends with the launch just made. */
static inline bool span_plan_is_full(uint64_t expected_ns, uint32_t launches) {
    return expected_ns >= SPAN_PLAN_TALLY_NS || launches >= SPAN_PLAN_LAUNCHES;
}

/* On a card with protected and best-effort containers the library must detect when work ends: a gate stays closed until
 * then, and the work in flight at a gate is limited. There the end of a tallied span is recorded too, and a launch this
 * long after the last record on its stream ends its span. */
#define SPAN_PLAN_MARK_NS 200000u

#endif
