/* A launch that waits at a closed gate by itself, on its stream, while the thread that made it goes on: the program may
 * hold locks that others wait for, and what it launches meets the protected container's work no sooner for that.
 *
 * A host function is put on the stream before it. The driver calls it when what is before it on the stream has ended,
 * and runs nothing behind it until it returns; it makes no call of the driver, and waits for none of the card's work.
 */
#ifndef VCUDA_GATE_DEFERRED_H
#define VCUDA_GATE_DEFERRED_H

#include "cuda/gate_passage.h"
#include "cuda/gate_tickets.h"
#include "cuda/stream_meter.h"

/* After so long one a second of a process goes ahead: the driver may have other host functions to call. */
#define GATE_DEFERRED_MOST_NS UINT64_C(1000000000)
/* What is in flight may wait for what comes behind this. */
#define GATE_DEFERRED_ROOM_NS UINT64_C(50000000)

/* May a host function be put on this stream now? */
bool gate_may_defer(const struct stream_meter *meter);

/* What the calling thread launches next on this stream waits at the gate of the look. False: it cannot just now. */
bool gate_defer(struct stream_meter *meter, const struct gate_look *look);

/* The driver calls no host function of a context that is in error or has ended: what waits there waits no more. The
 * helper thread calls this between two looks. */
void gate_deferred_tend(void);

#endif
