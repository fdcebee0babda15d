/* The streams of this process that are measured. */
#ifndef VCUDA_STREAM_METER_H
#define VCUDA_STREAM_METER_H

#include "cuda/timing_span.h"

/* Raised whenever a context ends: what threads remember of streams is to be asked again. */
extern uint64_t meter_epoch;

/* Raised whenever a stream ends: its handle may become one of another context. */
extern uint64_t streams_ended;

/* The meter of a stream for the calling thread, made if need be; NULL if its card is none of the pages'. */
struct stream_meter *stream_meter_of(CUstream stream, bool per_thread);

/* Is this stream, as the caller names it, being captured? Asked only while any is. */
bool stream_is_capturing(CUstream stream, bool per_thread);

/* Close what this thread finds open on a stream: it is about to wait for it. */
void stream_meter_flush(CUstream stream, bool per_thread);
void stream_meter_flush_context(void);

/* The same where it is about to put other work there than the card's kernels. */
void stream_meter_passes(CUstream stream, bool per_thread);

/* The same where the stream is to wait for who knows how long: until the driver is asked nobody knows when it is idle.
 */
void stream_meter_waits(CUstream stream, bool per_thread);

/* The same of all streams of a context. */
void stream_meters_wait(CUcontext context);

/* A stream is about to end. */
void stream_meter_ends(CUstream stream);

/* All of them, for who settles. */
#define STREAM_METER_LISTS 256
extern struct stream_meter *stream_meters[];

/* The stream whose span the one that settles is about to close, under the lock of context_meter.h; else NULL. Written
 * before the span is taken: who finds the stream without open spans finds this too. */
extern struct stream_meter *meter_closing;

#endif
