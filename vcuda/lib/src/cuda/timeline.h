/* When this container had work in flight on a card, for the host: see struct vcuda_timeline. Lock-free; a process
 * killed between two steps leaves a millisecond short of its work. */
#ifndef VCUDA_TIMELINE_H
#define VCUDA_TIMELINE_H

#include <stdint.h>

#include "page.h"

/* A context had work in flight from `from` to `to`, CLOCK_MONOTONIC in ns. Of what is longer than the timeline its end
 * is entered. */
void timeline_add(struct vcuda_timeline *timeline, int64_t from, int64_t to);

#endif
