/* Contexts that a driver call may be destroying at this moment. Such a call may wait for all work launched in the
 * context, for seconds at a closed gate. So no lock is held across it; the settling thread skips these contexts
 * instead. */
#ifndef VCUDA_CONTEXT_END_H
#define VCUDA_CONTEXT_END_H

#include <stdbool.h>
#include <stdint.h>

/* One such call, on the stack of its thread. */
struct context_end {
    uint64_t id; /* of the context, or of the primary context of green ones; 0: any context */
    struct context_end *next;
};

/* Call before the driver call. A thread that called context_end_may_be() earlier may still be working in the context.
 */
void context_end_begins(struct context_end *end, uint64_t id);

/* Call after the driver call. */
void context_end_is_over(struct context_end *end);

/* True if the context with this id may be being destroyed. */
bool context_end_may_be(uint64_t id);

#endif
