/* Finds out whether a stream has finished all its work, for streams that the program may be destroying. Any thread may
 * call. */
#ifndef VCUDA_STREAM_END_H
#define VCUDA_STREAM_END_H

#include <stdbool.h>

#include "cu_types.h"
#include "cuda/graph_backlog.h"

/* Begin a query: false while a context may be ending; then there must be no query. End it with stream_end_asked(). */
bool stream_end_ask(void);
void stream_end_asked(void);

/* Wait, for at most a second, until no query is in progress: what was withdrawn before is then in no thread's use. */
void stream_end_wait(void);

/* Block new queries until stream_end_release(). */
void stream_end_hold(void);
void stream_end_release(void);

/* True if the stream, which is not being captured, has finished. Between stream_end_ask() and stream_end_asked(). */
bool stream_end_is_reached(const struct graph_stream *stream);

/* An event after all work of a stream, for use once its handle is gone; NULL if none can be created. */
CUevent stream_end_event(const struct graph_stream *stream);
bool stream_end_event_is_reached(CUevent event);

/* Destroy an event that no record refers to any more. */
void stream_end_forget(CUevent event);

#endif
