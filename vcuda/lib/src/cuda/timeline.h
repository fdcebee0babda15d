/* When this container had work in flight on a card, for the host: see struct vcuda_timeline. Lock-free; a process
 * killed between two steps leaves a millisecond short of its work. */
#ifndef VCUDA_TIMELINE_H
#define VCUDA_TIMELINE_H

#include <stdint.h>

#include "page.h"

/* Work that a context had in flight, CLOCK_MONOTONIC in ns: it ran from `from` to `to`, for all that is known, and
 * surely between `since`, when it was launched, and `until`. */
struct timeline_work {
    int64_t since, from, to, until;
};

/* Enter it. Of work that is longer than the timeline its end is entered.
 *
 * Returns how much of it fits, in ns: a card gives its container no more than 1,000 us of a millisecond, so what all
 * contexts and processes of the container had in flight, divided by `divisor_q8` / 256 (by how much other containers
 * stretch its work), may not exceed that. What finds no room between `from` and `to` may have run earlier or later;
 * what finds none there either was the container's other work, which is charged. */
#define TIMELINE_SPREAD_NS                                                                                             \
    100000000 /* work of one process: so long before, since what is not measured lies anywhere                         \
               */
int64_t timeline_add(struct vcuda_timeline *timeline, const struct timeline_work *work, uint32_t divisor_q8);

/* What a millisecond of CLOCK_MONOTONIC holds, in us; and enter more into it. */
uint32_t timeline_us(const struct vcuda_timeline *timeline, int64_t ms);
void timeline_enter(struct vcuda_timeline *timeline, int64_t ms, uint32_t us);

#endif
