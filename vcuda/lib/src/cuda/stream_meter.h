/* The measured streams of this process. */
#ifndef VCUDA_STREAM_METER_H
#define VCUDA_STREAM_METER_H

#include "cuda/timing_span.h"

/* Incremented whenever a context ends: invalidates what threads have cached about streams. */
extern uint64_t meter_epoch;

/* Incremented whenever a stream ends: its handle may be reused in another context. */
extern uint64_t streams_ended;

/* The meter of a stream as the calling thread names it, created if necessary; NULL if its card is not in the control
 * pages. */
struct stream_meter *stream_meter_of(CUstream stream, bool per_thread);

/* True if this stream, as the caller names it, is being captured. Queried only while any capture is in progress. */
bool stream_is_capturing(CUstream stream, bool per_thread);

/* Close the open spans of a stream, or of all streams of the current context: the calling thread is about to wait for
 * it. */
void stream_meter_flush(CUstream stream, bool per_thread);
void stream_meter_flush_context(void);

/* Close the open spans of a stream that is about to get work other than kernels. */
void stream_meter_passes(CUstream stream, bool per_thread);

/* Close the open spans of a stream that is about to wait for an unknown time. From then on only the driver knows when
 * the stream is idle. `for_event`: the stream waits for an event, as a rule for work of another stream. */
void stream_meter_waits(CUstream stream, bool per_thread, bool for_event);

/* stream_meter_waits() for all streams of a context. */
void stream_meters_wait(CUcontext context);

/* A stream is about to end. */
void stream_meter_ends(CUstream stream);

/* Heads of the lists of all streams, for the settling thread. */
#define STREAM_METER_LISTS 256
extern struct stream_meter *stream_meters[];

/* The stream whose span the settling thread is about to close, under the lock of context_meter.h; else NULL. Written
 * before the span is taken, so a thread that finds the stream without open spans finds it here. */
extern struct stream_meter *meter_closing;

#endif
