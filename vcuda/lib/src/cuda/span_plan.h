/* Which launches share a span, which are measured, and when the driver is asked. Decisions alone: no call is made. */
#ifndef VCUDA_SPAN_PLAN_H
#define VCUDA_SPAN_PLAN_H

#include "cuda/cost.h"
#include "cuda/gpu_time.h"

#define SPAN_PLAN_NS 1000000u /* of work in a span ... */
#define SPAN_PLAN_SOON_NS 100000u
#define SPAN_PLAN_LAUNCHES 64     /* ... or so many launches end it */
#define SPAN_PLAN_SMALL_NS 20000u /* launches are joined without a look at the clock up to this length */
#define SPAN_PLAN_OWN_NS 250000u  /* a thread ends a span for its own stream's sake once in so long, ... */
#define SPAN_PLAN_OWN_MOST 40u    /* ... after a pause so many at once */

/* Which launches are measured by themselves: long ones always, since records are a small part of them; the first
 * COST_FIRST of a kind; and all of them while a window is open. The others are tallied in spans. */
#define SPAN_PLAN_LONG_NS 125000u
#define SPAN_PLAN_VARIES_NS 25000u /* long enough where launches of the kind differ by half of their mean */
#define SPAN_PLAN_TALLY_NS 200000u /* of work in one span */

/* Is each launch of this kind measured, whether or not a window is open? */
static inline bool span_plan_is_long(const struct cost *cost) {
    uint64_t ns = cost_ns(cost), spread = __atomic_load_n(&cost->spread_ns, __ATOMIC_RELAXED);
    return ns >= SPAN_PLAN_LONG_NS || (ns >= SPAN_PLAN_VARIES_NS && spread > ns / 2);
}

static inline bool span_plan_is_alone(const struct cost *cost, bool window_is_open) {
    return window_is_open || span_plan_is_long(cost) || cost_seen(cost) < COST_FIRST;
}

/* Does this launch join the open span without a look at the clock? Work that is small together, and charged as expected
 * in any case, cannot be far from where it is taken to be. */
static inline bool span_plan_joins(const struct span_facts *facts, bool measured, uint64_t expected_ns) {
    return !measured && facts->expected_ns + expected_ns <= SPAN_PLAN_SMALL_NS;
}

/* Is the driver to be asked whether the stream has drained? `open`: there is a span that goes on if it has not. A span
 * that would begin on a busy stream is made sure of, or a cost that is too high would never be found out. `shared`:
 * others are at work on the card, so that work takes longer than expected. */
static inline bool span_plan_asks(enum stream_state state, bool open, bool shared) {
    return state == STREAM_UNSURE || (state == STREAM_BUSY && !open) || (state == STREAM_IDLE && shared);
}

/* Does the span end with the launch just made? One that began on an idle stream does, unless it is too small; another
 * one as soon as its end can be afforded, since what stays open when the program pauses is measured badly. */
static inline bool span_plan_ends(const struct span_facts *facts, bool measured, bool affordable, uint32_t launches,
                                  uint64_t seen) {
    if (facts->expected_ns >= SPAN_PLAN_NS || launches >= SPAN_PLAN_LAUNCHES || seen < COST_FIRST)
        return true;
    if (facts->idle)
        return measured || facts->expected_ns >= SPAN_PLAN_SMALL_NS;
    return measured && affordable && facts->expected_ns >= SPAN_PLAN_SOON_NS;
}

/* On a thread's own null stream nobody else records: if the thread makes no call for a while, the end of what it has
 * left open is never measured. So it leaves nothing open, as long as that costs it little. `paid_until`: the thread's.
 */
static inline bool span_plan_ends_own(uint64_t *paid_until, uint64_t now) {
    uint64_t most = (uint64_t)SPAN_PLAN_OWN_MOST * SPAN_PLAN_OWN_NS;
    if (*paid_until + most < now)
        *paid_until = now - most;
    if (*paid_until + SPAN_PLAN_OWN_NS > now)
        return false;
    *paid_until += SPAN_PLAN_OWN_NS;
    return true;
}

#endif
