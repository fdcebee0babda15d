/* Deferred launches: the call returns, and the launch waits at the closed gate on its stream. A call that waited could
 * block other threads, since the program may hold locks across it; the kernel does not reach the card any sooner.
 *
 * The library puts a host function on the stream before the launch. The driver calls it when earlier work of the stream
 * has ended, and runs nothing behind it until it returns. The function makes no driver call and does not wait for work
 * on the card. */
#ifndef VCUDA_GATE_DEFERRED_H
#define VCUDA_GATE_DEFERRED_H

#include "cuda/gate_passage.h"
#include "cuda/gate_tickets.h"
#include "cuda/stream_meter.h"

/* After this time one deferred launch per second goes ahead: the driver may have other host functions to call. */
#define GATE_DEFERRED_MOST_NS UINT64_C(1000000000)
/* Work in flight may depend on work behind this launch, so it waits for room no longer than this. */
#define GATE_DEFERRED_ROOM_NS UINT64_C(50000000)

/* True if a host function can be put on this stream now. */
bool gate_may_defer(const struct stream_meter *meter);

/* Defer the next launch of the calling thread on this stream. False: not possible now. */
bool gate_defer(struct stream_meter *meter, const struct gate_look *look);

/* End the waits of launches whose context is in error or has ended, since the driver does not call their host
 * functions. Called by the helper thread between two passes. */
void gate_deferred_tend(void);

#endif
