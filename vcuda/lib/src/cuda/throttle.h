/* Around every call that puts work on a card:
 * `if (!throttle_may_wait() || !throttle_begin(...)) call the driver; else call it and throttle_end(...)`.
 *
 * Beginning pays the work's expected cost out of the thread's allowance, which comes out of the container's credit; it
 * waits while there is none. Ending hands the work to the meter.
 */
#ifndef VCUDA_THROTTLE_H
#define VCUDA_THROTTLE_H

#include <stdbool.h>
#include <stdint.h>

#include "cu_types.h"
#include "page.h"

struct throttled_work {
    struct stream_meter *meter;
    struct timing_span *span;
    struct cost *cost;
    uint64_t expected_ns; /* as long as the stream is expected to be busy with it */
    uint64_t paid_ns;     /* of the container's credit */
};

/* What a thread remembers of the limits. */
struct throttle_view {
    const struct vcuda_limits_view *view; /* the view and generation that `limited` belongs to */
    uint64_t generation;
    uint32_t limited;   /* bit per card */
    uint32_t uncounted; /* launches not yet in the page, while no card is limited */
};
extern __thread struct throttle_view throttle_view __attribute__((tls_model("initial-exec")));
#define THROTTLE_UNCOUNTED_MOST 64

/* Is any card's time limited, by what the thread remembers? A free launch is counted, and that is all: no call and a
 * handful of loads, so that a hook that then goes straight to the driver costs next to nothing. */
enum throttle_kind { THROTTLE_FREE, THROTTLE_LIMITED, THROTTLE_UNKNOWN };

static inline enum throttle_kind throttle_kind(void) {
    const struct vcuda_limits_view *view = vcuda_limits_here();
    if (__builtin_expect(!view || throttle_view.view != view || throttle_view.generation != view->generation, 0))
        return THROTTLE_UNKNOWN;
    if (throttle_view.limited)
        return THROTTLE_LIMITED;
    if (__builtin_expect(throttle_view.uncounted >= THROTTLE_UNCOUNTED_MOST, 0))
        return THROTTLE_UNKNOWN;
    throttle_view.uncounted++;
    return THROTTLE_FREE;
}

/* The same asked of the limits, where that is not known. True if any is limited; else the launch is counted. */
bool throttle_look(void);

static inline bool throttle_may_wait(void) {
    enum throttle_kind kind = throttle_kind();
    return kind == THROTTLE_UNKNOWN ? throttle_look() : kind == THROTTLE_LIMITED;
}

/* After throttle_may_wait(). False: this call is not ours to hold back or to measure (no limit on its card, in capture,
 * a card of nobody's). `per_thread`: the null stream is the thread's own. What is launched and how much of it tell
 * kinds of work apart. */
bool throttle_begin(struct throttled_work *work, CUstream stream, bool per_thread, const void *what, uint64_t size);

/* After the driver's answer. */
void throttle_end(struct throttled_work *work, CUresult result);

/* Put into the page the launches that no limit held back: the thread is about to wait. */
void throttle_count(void);

#endif
