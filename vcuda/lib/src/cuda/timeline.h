/* When this container had work in flight on a card, for the host: see struct vcuda_timeline. Lock-free; a process
 * killed between two steps leaves a millisecond short of its work. */
#ifndef VCUDA_TIMELINE_H
#define VCUDA_TIMELINE_H

#include <stdint.h>

#include "page.h"

/* Record that a context had work in flight from `from` to `to` (CLOCK_MONOTONIC, ns). Of work that is longer than the
 * timeline its end is recorded.
 *
 * Returns how much of it still fits, in ns: a card gives its container no more than 1,000 us of a millisecond, so what
 * all contexts and processes of the container had in flight, divided by `divisor_q8` / 256 (by how much other
 * containers stretch its work), may not exceed that. The rest was the container's other work, which is charged. */
int64_t timeline_add(struct vcuda_timeline *timeline, int64_t from, int64_t to, uint32_t divisor_q8);

#endif
