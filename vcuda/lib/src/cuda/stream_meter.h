/* Measuring work on the card: spans of it between two events, on each stream of each context.
 *
 * A program's thread opens a span (records its start), adds launches, and closes it (records its end) after about a
 * millisecond of expected work; then the helper thread finds it finished and settles it. A span belongs to whoever
 * took it out of its stream's place with an exchange, so nobody waits for anybody. No stream is ever synchronised, and
 * no event is recorded in one that is being captured.
 */
#ifndef VCUDA_STREAM_METER_H
#define VCUDA_STREAM_METER_H

#include <stdbool.h>
#include <stdint.h>

#include "cu_types.h"
#include "cuda/cost.h"
#include "cuda/busy_intervals.h"

#define TIMING_SPANS 256        /* of a context; a program that has more in flight is charged by expectation */
#define TIMING_SPAN_KINDS 6     /* of work in one span */
#define TIMING_SPAN_LAUNCHES 64 /* in one span */
#define TIMING_SPAN_NS 1000000u
#define TIMING_SPANS_OPEN 2 /* open spans of a stream: threads that share it find one each */

struct stream_meter;

struct timing_span {
    struct timing_span *next;  /* in `free_head` or `closed`: any thread may look at it */
    struct timing_span *after; /* in `waiting`: only the one that settles */
    struct context_meter *context_meter;
    struct stream_meter *meter;
    CUevent start, end;
    uint64_t expected_ns; /* what its launches have paid */
    uint64_t opened_ns, closed_ns;
    uint64_t late_ns;   /* host time between the start's record and the launch, on an idle stream: no work */
    uint64_t unsure_ns; /* host time between the last launch and the end's record: perhaps no work */
    uint32_t launches;
    uint32_t kinds;
    bool was_idle, measured;
    struct {
        struct cost *cost;
        uint32_t count;
    } kind[TIMING_SPAN_KINDS];
};

/* A context on a card of the pages. Never freed; one that ended is used again for another. */
struct context_meter {
    struct context_meter *next;
    CUcontext context;
    uint64_t owner; /* the context's id; 0: ended */
    int card;
    bool lost; /* its card or context is broken: launches fail anyway, hold none back */
    uint64_t free_head;
    struct timing_span *closed; /* pushed by programs' threads, taken whole by the one that settles */
    /* only the one that settles: */
    struct timing_span *waiting, **waiting_end;
    struct busy_intervals busy;
    CUevent reference; /* all times are relative to it; a float of milliseconds is exact enough for some seconds */
    int64_t reference_ns;
    struct timing_span span[TIMING_SPANS];
};

/* A stream. Never freed; one that ended is used again. */
struct stream_meter {
    struct stream_meter *next;
    uint64_t key[3]; /* handle, context's id, thread for its own default stream; key[0] == 0: free */
    CUstream stream; /* as any thread with the context current can name it */
    struct context_meter *context_meter;
    int card;
    bool others_may_record; /* false for a thread's default stream */
    uint32_t unsettled;     /* spans open or not settled */
    uint32_t blocked;       /* the pass of the settling one in which a span was found unfinished */
    struct timing_span *open[TIMING_SPANS_OPEN];
    struct {
        struct timing_span *span;
        uint32_t launches;
        uint64_t since;
    } quiet[TIMING_SPANS_OPEN]; /* only the one that settles */
};

/* Raised whenever a stream or context ends: what threads remember of meters is to be asked again. */
extern uint64_t meter_epoch;

/* Streams being captured in this process, at least. */
extern uint32_t meter_captures;

/* Work expected in flight of this process, by card of the pages. */
extern uint64_t meter_ahead_ns[];

/* The meter of a stream for the calling thread, made if need be; NULL if its card is none of the pages'. */
struct stream_meter *stream_meter_of(CUstream stream, bool per_thread);

/* Is this stream, as the caller names it, being captured? Asked only while any is. */
bool stream_is_capturing(CUstream stream, bool per_thread);

/* Take the stream's open span, or open one; NULL if none can be had. */
struct timing_span *timing_span_take(struct stream_meter *meter);

/* Add a launch, before it is made; take it out again if it fails. */
void timing_span_add(struct timing_span *span, struct cost *cost, uint64_t expected_ns);
void timing_span_remove(struct timing_span *span, struct cost *cost, uint64_t expected_ns);

/* Put the span back for more launches. */
void timing_span_put(struct stream_meter *meter, struct timing_span *span);

/* Record its end and hand it over for settling; `now` is the time the last launch returned. */
void timing_span_close(struct timing_span *span, uint64_t now);

/* Close what this thread finds open on a stream: it is about to wait for it, or to put other work there. */
void stream_meter_flush(CUstream stream, bool per_thread);
void stream_meter_flush_context(void);

/* A stream is about to end. */
void stream_meter_ends(CUstream stream);

/* Around calls that may end contexts: nothing of ours touches a context in between. */
void meter_suspend(void);
void meter_resume(void);

/* Settle what is finished, close what has been quiet, unless someone else is at it. Returns the time in ns until the
 * next look is worth while, 0 if nothing is in flight. */
uint64_t settle_pass(void);

/* Make sure that the helper thread is awake. */
void settle_wake(void);

/* For stream_meter.c and settle.c: */
extern struct context_meter *context_meters;
extern struct stream_meter *stream_meters[];
#define STREAM_METER_LISTS 256
bool settle_lock(bool patient);
void settle_unlock(void);
void timing_span_free(struct timing_span *span);
void timing_span_drop(struct timing_span *span);
bool timing_span_record(CUevent event, CUstream stream);
void stream_meter_settled(struct stream_meter *meter);

#endif
