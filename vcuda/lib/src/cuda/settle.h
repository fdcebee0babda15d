/* Settles finished work: compares what it took by the card's clock with what was paid for it. */
#ifndef VCUDA_SETTLE_H
#define VCUDA_SETTLE_H

#include <stdint.h>

#include "cuda/context_end.h"

/* The time between two passes over unfinished work. */
#define LOOK_LEAST_NS 150000u
#define LOOK_MOST_NS 1000000u

/* Settle what is finished and close quiet spans, unless another thread is settling. Returns the time in ns until the
 * next pass is worthwhile, 0 if nothing is in flight. */
uint64_t settle_pass(void);

/* Call around driver calls that may end the context with this id, or a primary context and its green contexts (0: any
 * context). In between the library does not touch such a context; work of other contexts is still settled. */
void settle_suspend(struct context_end *end, uint64_t id);
void settle_resume(struct context_end *end);

#endif
