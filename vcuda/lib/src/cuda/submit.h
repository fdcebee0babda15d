/* Around every call that puts work on a card:
 * `if (!work_may_wait() || !work_begin(...)) call the driver; else call it and work_end(...)`.
 *
 * Beginning pays the work's expected cost out of the thread's allowance, which comes out of the container's credit; it
 * waits while there is none. Ending hands the work to the meter.
 */
#ifndef VCUDA_SUBMIT_H
#define VCUDA_SUBMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "cu_types.h"
#include "page.h"

struct work {
    struct meter *meter;
    struct piece *piece;
    struct cost *cost;
    uint64_t paid_ns;
};

/* What a thread remembers of the limits. */
struct work_view {
    const struct vcuda_limits_view *view; /* the view and generation that `limited` belongs to */
    uint64_t generation;
    uint32_t limited;   /* bit per card */
    uint32_t uncounted; /* launches not yet in the page, while no card is limited */
};
extern __thread struct work_view work_view __attribute__((tls_model("initial-exec")));
#define WORK_UNCOUNTED_MOST 64

/* Is any card's time limited, by what the thread remembers? A free launch is counted, and that is all: no call and a
 * handful of loads, so that a hook that then goes straight to the driver costs next to nothing. */
enum work_kind { WORK_FREE, WORK_LIMITED, WORK_UNKNOWN };

static inline enum work_kind work_kind(void) {
    const struct vcuda_limits_view *view = vcuda_limits_here();
    if (__builtin_expect(!view || work_view.view != view || work_view.generation != view->generation, 0))
        return WORK_UNKNOWN;
    if (work_view.limited)
        return WORK_LIMITED;
    if (__builtin_expect(work_view.uncounted >= WORK_UNCOUNTED_MOST, 0))
        return WORK_UNKNOWN;
    work_view.uncounted++;
    return WORK_FREE;
}

/* The same asked of the limits, where that is not known. True if any is limited; else the launch is counted. */
bool work_look(void);

static inline bool work_may_wait(void) {
    enum work_kind kind = work_kind();
    return kind == WORK_UNKNOWN ? work_look() : kind == WORK_LIMITED;
}

/* After work_may_wait(). False: this call is not ours to hold back or to measure (no limit on its card, in capture, a
 * card of nobody's). `per_thread`: the null stream is the thread's own. What is launched and how much of it tell kinds
 * of work apart. */
bool work_begin(struct work *work, CUstream stream, bool per_thread, const void *what, uint64_t size);

/* After the driver's answer. */
void work_end(struct work *work, CUresult result);

/* Put into the page the launches that no limit held back: the thread is about to wait. */
void work_count(void);

#endif
