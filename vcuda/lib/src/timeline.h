/* When this container had work in flight on a card, published for the host: see struct vcuda_timeline. Lock-free; a
 * process killed between two steps leaves a millisecond with too little work. */
#ifndef VCUDA_TIMELINE_H
#define VCUDA_TIMELINE_H

#include <stdint.h>

#include "page.h"

/* Work that a context had in flight, CLOCK_MONOTONIC in ns. It ran from `from` to `to` by estimate, and certainly
 * between its launch at `since` and `until`. */
struct timeline_work {
    int64_t since, from, to, until;
};

/* Enter work. Of work longer than the timeline only its end is entered.
 *
 * Returns how much of it fits, in ns. A card gives its container no more than 1,000 us of a millisecond, so the work
 * that all contexts and processes of the container had in flight, divided by `divisor_q8` / 256 (the factor by which
 * other containers stretch its work), may not exceed that. Work that does not fit between `from` and `to` may have run
 * earlier or later; what does not fit there either was other work of the container, which is charged already. */
#define TIMELINE_SPREAD_NS                                                                                             \
    100000000 /* how far before `from` the work of one process may be entered, since unmeasured work has no known      \
                 position */
int64_t timeline_add(struct vcuda_timeline *timeline, const struct timeline_work *work, uint32_t divisor_q8);

/* timeline_us(): the work in a millisecond of CLOCK_MONOTONIC, in us; timeline_enter() adds to it. */
uint32_t timeline_us(const struct vcuda_timeline *timeline, int64_t ms);
void timeline_enter(struct vcuda_timeline *timeline, int64_t ms, uint32_t us);

#endif
