/* Has a stream done all that it was given? Asked of streams that the program may destroy at the same time. */
#ifndef VCUDA_STREAM_END_H
#define VCUDA_STREAM_END_H

#include <stdbool.h>

#include "cu_types.h"
#include "cuda/graph_backlog.h"

/* A question begins: false while a context may be ending, and then there is none. stream_end_asked() ends it. */
bool stream_end_ask(void);
void stream_end_asked(void);

/* Wait until no question is on its way: what was withdrawn before is nobody's then. For a second at most. */
void stream_end_wait(void);

/* No question from here on, until it is released. */
void stream_end_hold(void);
void stream_end_release(void);

/* The question itself, about a stream that is not captured. */
bool stream_end_is_reached(const struct graph_stream *stream);

/* An event behind all that a stream was given, for when its handle is gone; NULL if there is none to be had. */
CUevent stream_end_event(const struct graph_stream *stream);
bool stream_end_event_is_reached(CUevent event);

/* An event that no record has any more. */
void stream_end_forget(CUevent event);

#endif
