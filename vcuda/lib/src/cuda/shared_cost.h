/* What of a launch's time was its own, where other containers share the card.
 *
 * The card runs one process at a time, in turns. A short kernel runs within one turn and takes what it takes alone, or
 * it waits for a whole turn of each of the others first. So its time is not divided by how many share the card: it is
 * the kernel's own, or else what launches of its kind take that did not wait. Work of about a turn or more meets
 * others' turns in proportion and is divided.
 *
 * Kept beside the table of costs; only the thread that settles calls this.
 */
#ifndef VCUDA_SHARED_COST_H
#define VCUDA_SHARED_COST_H

#include "cuda/cost.h"

/* An H100's turns take 2.43 ms (docs/real-card.md). */
#define SHARED_COST_TURN_NS 2430000u
/* What takes so much longer than its kind does, or twice as long, waited. */
#define SHARED_COST_NEAR_NS 50000u

/* By what the time of a launch that took `took_ns` is divided, x 256. `follows`: it began as its stream's work before
 * it ended. `sharers_q8`: how many share the card, x 256. */
uint32_t shared_cost_divisor(const struct cost *cost, uint64_t took_ns, bool follows, uint32_t sharers_q8);

/* How long the others' turns are that a launch may wait for, at most. */
static inline int64_t shared_cost_turns_ns(uint32_t sharers_q8) {
    return (int64_t)SHARED_COST_TURN_NS * 5 / 4 * ((sharers_q8 - 1) / 256);
}

#endif
