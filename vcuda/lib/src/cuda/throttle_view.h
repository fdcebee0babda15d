/* What a thread remembers of the limits: whether a launch has to ask throttle.h at all. */
#ifndef VCUDA_THROTTLE_VIEW_H
#define VCUDA_THROTTLE_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "page.h"

struct throttle_view {
    const struct vcuda_limits *limits; /* NULL: nothing is remembered */
    uint64_t seen[2];                  /* the page's generation words that `limited` belongs to */
    uint32_t limited;                  /* bit per card */
    uint32_t uncounted;                /* launches not yet in the page, while no card is limited */
    uint32_t gated; /* bit per card: this container is a best-effort one, and protected ones are there */
};
extern __thread struct throttle_view throttle_view __attribute__((tls_model("initial-exec")));
#define THROTTLE_UNCOUNTED_MOST 64

/* Is any card's time limited, by what the thread remembers? A free launch is counted, and that is all: no call and a
 * handful of loads, so that a launch that then goes straight to the driver costs next to nothing. */
enum throttle_kind { THROTTLE_FREE, THROTTLE_LIMITED, THROTTLE_UNKNOWN };

static inline enum throttle_kind throttle_kind(void) {
    const struct vcuda_limits *limits = throttle_view.limits;
    if (__builtin_expect(!limits || vcuda_generation_word(limits, 0) != throttle_view.seen[0] ||
                             vcuda_generation_word(limits, 1) != throttle_view.seen[1],
                         0))
        return THROTTLE_UNKNOWN;
    if (throttle_view.limited)
        return THROTTLE_LIMITED;
    if (__builtin_expect(throttle_view.uncounted >= THROTTLE_UNCOUNTED_MOST, 0))
        return THROTTLE_UNKNOWN;
    throttle_view.uncounted++;
    return THROTTLE_FREE;
}

/* The same, asked of the limits themselves. If none is, the launch is counted. */
bool throttle_look(void);

static inline bool throttle_may_wait(void) {
    enum throttle_kind kind = throttle_kind();
    return kind == THROTTLE_UNKNOWN ? throttle_look() : kind == THROTTLE_LIMITED;
}

/* Put into the page the launches that no limit held back: the thread is about to wait. */
void throttle_count(void);

#endif
