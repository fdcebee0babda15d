/* A thread's cached view of the limits: decides whether a launch needs throttle.h at all. */
#ifndef VCUDA_THROTTLE_VIEW_H
#define VCUDA_THROTTLE_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "page.h"

struct throttle_view {
    const struct vcuda_limits *limits; /* NULL: nothing is cached */
    uint64_t seen[2];                  /* the page's generation words for which `limited` is valid */
    uint32_t limited;                  /* a bit per card: its core time is limited */
    uint32_t uncounted;                /* launches not yet counted in the page, while no card is limited */
    uint32_t gated; /* a bit per card: this container is best-effort there and shares the card with protected ones */
};
extern __thread struct throttle_view throttle_view __attribute__((tls_model("initial-exec")));
#define THROTTLE_UNCOUNTED_MOST 64

/* Whether any card's core time is limited, by the cached view. A free launch is only counted: no call and a handful of
 * loads, so that it costs next to nothing. */
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

/* The same decision from the limits themselves. If no card is limited, the launch is counted. */
bool throttle_look(void);

static inline bool throttle_may_wait(void) {
    enum throttle_kind kind = throttle_kind();
    return kind == THROTTLE_UNKNOWN ? throttle_look() : kind == THROTTLE_LIMITED;
}

/* Add this thread's uncounted launches to the page: the thread is about to wait. */
void throttle_count(void);

#endif
