/* Spans: what the meter knows of launches on one stream, from the launch until their work has ended.
 *
 * A span is of one launch that is measured by itself, between two events, or of several launches that are tallied:
 * each of them costs the mean of its kind (measuring_window.h). span_plan.h decides which. The program's thread opens a
 * span, adds launches and closes it; the thread that settles then finds it finished. A tallied span waits in its
 * stream's place for more launches. A thread that takes it out leaves TIMING_SPAN_HELD there until it puts the span
 * back, so no thread waits for another one, and a launch needs one locked instruction. The library synchronises no
 * stream and records no event in a stream that is being captured.
 */
#ifndef VCUDA_TIMING_SPAN_H
#define VCUDA_TIMING_SPAN_H

#include <stdbool.h>
#include <stdint.h>

#include "cu_types.h"
#include "cuda/busy_intervals.h"
#include "cuda/cost.h"
#include "cuda/gpu_time.h"
#include "cuda/known_busy.h"
#include "cuda/launch_wait.h"
#include "cuda/measuring_window.h"
#include "cuda/span_plan.h"

#define TIMING_SPANS 256    /* of a context; a program that has more in flight is charged by expectation */
#define TIMING_SPANS_OPEN 2 /* open spans of a stream: threads that share it find one each */
/* In the place of an open span that somebody holds. */
#define TIMING_SPAN_HELD ((struct timing_span *)1)

struct stream_meter;

struct timing_span {
    struct timing_span *next;  /* in `free_head` or `closed`: any thread may look at it */
    struct timing_span *after; /* in `waiting`: only the one that settles */
    struct context_meter *context_meter;
    struct stream_meter *meter;
    struct timing_span **place; /* among the stream's open ones that its holder took it from; NULL: it is new */
    CUevent start, end;
    struct span_facts facts;
    uint64_t paid_ns;   /* of the container's credit, for its launches */
    uint64_t closed_at; /* all of its launches had been made by then */
    uint32_t launches;
    struct cost *cost; /* of the last launch: the only one, if it is measured */
    bool alone;        /* of one launch, measured by itself: its start is recorded, and its end will be */
    bool early;        /* earlier work of other streams, which is not measured, may run beside it */
    bool ends;         /* its end is recorded: the driver tells when it is reached */
    bool is_behind;    /* other things than launches may stand before it in its stream: copies, waits */
};

/* A context on a card of the pages. Never freed; one that ended is used again for another. */
struct context_meter {
    struct context_meter *next;
    CUcontext context;
    uint64_t owner; /* the context's id; 0: ended */
    int card;
    bool lost; /* its card or context is broken: launches fail anyway, hold none back */
    uint64_t unmeasured,
        unmeasured_ns; /* launches for which no span was free, and what they paid: not yet in the page */
    uint64_t free_head;
    struct timing_span *closed; /* pushed by programs' threads, taken whole by the one that settles */
    /* only the one that settles: */
    struct timing_span *waiting, **waiting_end;
    struct busy_intervals busy;
    struct known_busy known;
    struct card_clock clock;
    struct launch_wait wait;
    uint64_t stamp_ns; /* what the record of an event takes on the card, the least of `stamps` looks; any thread */
    uint32_t stamps;
    bool stamp_is_known, stamp_is_exact;
    CUevent reference; /* all times are relative to it; a float of milliseconds is exact enough for some seconds */
    int64_t reference_ns;
    struct timing_span span[TIMING_SPANS];
};

/* Of a stream that lives, of one that ended, or about to be another's. */
enum meter_use { METER_LIVES, METER_ENDED, METER_TAKEN };

/* A stream. Never freed. One that ended is used again: for a stream of the same handle at once, as if it had gone on,
 * for another one when its work is settled. */
struct stream_meter {
    struct stream_meter *next;
    uint64_t key[3];     /* handle, context's id, thread for its own default stream; key[0] == 0: its context ended */
    uint64_t seen_epoch; /* meter_epoch when its handle was last asked for its context; while that stays, it is its */
    CUstream stream;     /* as any thread with the context current can name it */
    struct context_meter *context_meter;
    int card;
    uint32_t use;              /* enum meter_use */
    bool others_may_record;    /* false for a thread's default stream */
    uint64_t marked_at;        /* when the end of a span was last recorded; any thread: it is an estimate */
    struct stream_clock clock; /* any thread, without a lock: it is an estimate */
    int64_t settled_to;        /* only the one that settles: the end of what it has settled, in the card's time */
    bool lost_count;           /* the same: work of unknown length was put into it since an end was recorded */
    int64_t busy_to, turns_ns; /* the same: it surely had work until then, of which others' turns may be so much */
    bool is_behind;            /* other things than launches were put into it since the last one; any thread */
    uint32_t unsettled;        /* spans open or not settled */
    uint32_t blocked;          /* the pass of the settling one in which a span was found unfinished */
    uint32_t sought;           /* the pass in which the next span with a recorded end was looked for, ... */
    bool found_finished;       /* ... and had ended */
    struct timing_span *open[TIMING_SPANS_OPEN];
    struct {
        struct timing_span *span;
        uint32_t launches;
        uint64_t since;
    } quiet[TIMING_SPANS_OPEN]; /* only the one that settles */
};

/* All of the context's spans wait to be settled, as when the helper has had no processor for a while. */
static inline bool context_meter_is_exhausted(const struct context_meter *context_meter) {
    return !(__atomic_load_n(&context_meter->free_head, __ATOMIC_RELAXED) & 0xffff);
}

/* Streams being captured in this process, at least. */
extern uint32_t meter_captures;

/* Work in flight of this process that was paid for, by card of the pages. */
extern uint64_t meter_ahead_ns[];

/* When the head of it began, as far as is known, on the cards that the container is a best-effort one of. */
extern uint64_t meter_head_since[];

/* Cards on which the container is best-effort beside protected ones, and on which it is protected beside best-effort
 * ones: a bit per card. */
extern uint32_t meter_gated, meter_tells;

/* When every launch of this process is measured by itself. */
extern struct measuring_window meter_window;

/* The open span of this place, for whoever calls to hold; false if it is not there any more. */
static inline bool timing_span_hold_this(struct timing_span **place, struct timing_span *span) {
    struct timing_span *found = span;
    if (!__atomic_compare_exchange_n(place, &found, TIMING_SPAN_HELD, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return false;
    span->place = place;
    return true;
}

/* The same of whatever is open there; NULL if nothing is, or somebody holds it. */
static inline struct timing_span *timing_span_hold(struct timing_span **place) {
    struct timing_span *span = __atomic_load_n(place, __ATOMIC_RELAXED);
    return span && span != TIMING_SPAN_HELD && timing_span_hold_this(place, span) ? span : NULL;
}

/* The same of all open spans of the stream: the first to be had. */
static inline struct timing_span *timing_span_hold_any(struct stream_meter *meter) {
    struct timing_span *span = NULL;
    for (int i = 0; i < TIMING_SPANS_OPEN && !span; i++)
        span = timing_span_hold(&meter->open[i]);
    return span;
}

/* Are both protected and best-effort containers on this card, this one among them? */
static inline bool meter_is_classed(int card) {
    uint32_t gated = __atomic_load_n(&meter_gated, __ATOMIC_RELAXED);
    return (gated | __atomic_load_n(&meter_tells, __ATOMIC_RELAXED)) >> card & 1;
}

/* Close the stream's open span, if there is one, and open another: of one launch that is measured by itself (`alone`),
 * or of launches that are tallied. NULL if none is free. */
struct timing_span *timing_span_begin(struct stream_meter *meter, struct timing_span *span, const struct cost *cost,
                                      bool alone);

/* Does another stream of this process have work in flight on the card? */
bool timing_span_is_beside(const struct stream_meter *meter);

/* The span for a launch of this kind; NULL if none is free. */
static inline struct timing_span *timing_span_take(struct stream_meter *meter, const struct cost *cost) {
    struct timing_span *span = timing_span_hold_any(meter);
    uint64_t ns = cost_ns(cost);
    bool alone = span_plan_is_alone(cost, measuring_window_is_open(&meter_window)) ||
                 (span_plan_varies(cost) && !timing_span_is_beside(meter));
    if (alone || !span || span->facts.expected_ns + ns > SPAN_PLAN_TALLY_NS)
        return timing_span_begin(meter, span, cost, alone);
    __atomic_store_n(&meter->clock.idle_at, __atomic_load_n(&meter->clock.idle_at, __ATOMIC_RELAXED) + ns,
                     __ATOMIC_RELAXED);
    return span;
}

/* Add a launch that is expected to keep its stream busy for `expected_ns` and has paid `paid_ns`, before it is made;
 * take it out again if it fails. */
static inline void timing_span_add(struct timing_span *span, struct cost *cost, uint64_t expected_ns,
                                   uint64_t paid_ns) {
    span->facts.expected_ns += expected_ns;
    span->paid_ns += paid_ns;
    span->cost = cost;
    __atomic_store_n(&span->launches, span->launches + 1, __ATOMIC_RELAXED);
}

void timing_span_remove(struct timing_span *span, uint64_t expected_ns, uint64_t paid_ns);

/* Put the span back for more launches. */
void timing_span_put_new(struct stream_meter *meter, struct timing_span *span);

static inline void timing_span_put(struct stream_meter *meter, struct timing_span *span) {
    if (span->place)
        __atomic_store_n(span->place, span, __ATOMIC_RELEASE);
    else
        timing_span_put_new(meter, span);
}

/* Does the span end with the launch just made? */
bool timing_span_is_over(const struct timing_span *span);

/* Hand it over for settling, with a record of its end where that is needed. */
void timing_span_close(struct timing_span *span);

/* The same where no launch is about to follow. A stream that should be idle gets no record: beside other processes the
 * card would turn to this one for it. */
void timing_span_flush(struct timing_span *span);

/* The same right after its last launch, whose call tells how long calls take. */
void timing_span_end(struct timing_span *span);

/* The same where no launch was made for a while, the last one before `since`; only the one that settles. */
void timing_span_close_quiet(struct timing_span *span, uint64_t since);

/* It was handed over without a record and should have ended: record its end if the driver says that its stream has
 * work still. False: it has none. Only the one that settles. */
bool timing_span_is_late(struct timing_span *span);

/* Hand it over without a record: it is settled when it is expected to have ended. */
void timing_span_drop(struct timing_span *span);

/* A span of the stream took longer or shorter than expected. */
void stream_meter_corrected(struct stream_meter *meter, uint64_t expected_ns, uint64_t took_ns);

/* It is settled: its stream has one less, and it can be used again. */
void stream_meter_settled(struct stream_meter *meter);
void timing_span_free(struct timing_span *span);

#endif
