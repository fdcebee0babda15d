/* Settling finished work: what it took by the card's own clock, against what it had paid. */
#ifndef VCUDA_SETTLE_H
#define VCUDA_SETTLE_H

#include <stdint.h>

#include "cuda/context_end.h"

/* The time between two looks at unfinished work. */
#define LOOK_LEAST_NS 150000u
#define LOOK_MOST_NS 1000000u

/* Settle what is finished and close what has been quiet, unless another thread is at it. Returns the time in ns until
 * the next look is worth while, 0 if nothing is in flight. */
uint64_t settle_pass(void);

/* Around calls that may end the context with this id, or those of its primary one; 0: any. Nothing of the library's
 * touches such a context in between; what others have in flight is settled. */
void settle_suspend(struct context_end *end, uint64_t id);
void settle_resume(struct context_end *end);

#endif
