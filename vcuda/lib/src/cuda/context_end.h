/* Contexts that a call of the driver may be ending at this moment. Such a call may wait for all that was launched
 * there, at a closed gate for seconds: so no lock is held across it, and whoever settles passes these contexts over.
 */
#ifndef VCUDA_CONTEXT_END_H
#define VCUDA_CONTEXT_END_H

#include <stdbool.h>
#include <stdint.h>

/* One such call, on its thread's stack. */
struct context_end {
    uint64_t id; /* of the context, or of the primary one of its green ones; 0: it may be any */
    struct context_end *next;
};

/* Before the call. Who asked before this may still be at work in the context. */
void context_end_begins(struct context_end *end, uint64_t id);

/* After it. */
void context_end_is_over(struct context_end *end);

/* May the context with this id be ending? */
bool context_end_may_be(uint64_t id);

#endif
