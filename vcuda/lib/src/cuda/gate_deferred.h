/* A launch that waits at a closed gate on its stream, while its call returns: the program may hold locks that its other
 * threads wait for, and the kernel meets the protected container's work no sooner for that.
 *
 * The library puts a host function on the stream before the launch. The driver calls the function when earlier work of
 * the stream has ended, and runs nothing behind it until it returns. The function makes no call of the driver, and
 * waits for none of the card's work.
 */
#ifndef VCUDA_GATE_DEFERRED_H
#define VCUDA_GATE_DEFERRED_H

#include "cuda/gate_passage.h"
#include "cuda/gate_tickets.h"
#include "cuda/stream_meter.h"

/* After so long one such launch a second goes ahead: the driver may have other host functions to call. */
#define GATE_DEFERRED_MOST_NS UINT64_C(1000000000)
/* Work in flight may wait for work behind this launch, so it waits for room no longer than this. */
#define GATE_DEFERRED_ROOM_NS UINT64_C(50000000)

/* True if a host function can be put on this stream now. */
bool gate_may_defer(const struct stream_meter *meter);

/* Have the next launch of the calling thread on this stream wait at the gate. False: that is not possible now. */
bool gate_defer(struct stream_meter *meter, const struct gate_look *look);

/* The driver calls no host function of a context that is in error or has ended: what waits there waits no more. The
 * helper thread calls this between two looks. */
void gate_deferred_tend(void);

#endif
