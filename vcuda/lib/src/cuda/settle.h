/* Settling finished work: what it took by the card's own clock, against what it had paid. */
#ifndef VCUDA_SETTLE_H
#define VCUDA_SETTLE_H

#include <stdint.h>

/* The time between two looks at unfinished work. */
#define LOOK_LEAST_NS 150000u
#define LOOK_MOST_NS 1000000u

/* Settle what is finished and close what has been quiet, unless another thread is at it. Returns the time in ns until
 * the next look is worth while, 0 if nothing is in flight. */
uint64_t settle_pass(void);

/* Around calls that may end contexts: nothing of the library's touches a context in between. */
void settle_suspend(void);
void settle_resume(void);

#endif
