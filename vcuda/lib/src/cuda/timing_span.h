/* Spans: what the meter knows about launches on one stream, from the launch until their work has ended.
 *
 * A span has one launch that is measured by itself, between two events, or several launches that are tallied: each of
 * those costs the mean of its kind (measuring_window.h). span_plan.h decides which. The program's thread opens a span,
 * adds launches and closes it; later the settling thread finds it finished. A tallied span waits in its stream's place
 * for more launches. A thread that takes it out leaves TIMING_SPAN_HELD there until it puts the span back, so no thread
 * waits for another one, and a launch needs one locked instruction. The library synchronises no stream and records no
 * event in a stream that is being captured. */
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

#define TIMING_SPANS 256    /* per context; a program with more in flight is charged by expectation */
#define TIMING_SPANS_OPEN 2 /* open spans per stream, so that threads sharing it rarely compete */
/* Marks the place of an open span that a thread has taken out. */
#define TIMING_SPAN_HELD ((struct timing_span *)1)

struct stream_meter;

/* What precedes a launch in its stream, besides launches: nothing; at last a wait for an event, as a rule for work of
 * another stream; copies, host functions and what else takes an unknown time. */
enum behind { BEHIND_LAUNCHES, BEHIND_EVENT, BEHIND_OTHER };

struct timing_span {
    struct timing_span *next;  /* in `free_head` or `closed`: any thread may read it */
    struct timing_span *after; /* in `waiting`: settling thread only */
    struct context_meter *context_meter;
    struct stream_meter *meter;
    struct timing_span **place; /* the place among the stream's open spans from which it was taken; NULL: it is new */
    CUevent start, end;
    struct span_facts facts;
    uint64_t paid_ns;   /* taken from the container's credit for its launches */
    uint64_t closed_at; /* time by which all of its launches had been made */
    uint32_t launches;
    struct cost *cost; /* of the last launch: the only one, if it is measured */
    bool alone;        /* one launch, measured by itself: its start is recorded, and its end will be */
    bool early;        /* unmeasured earlier work of other streams may run beside it */
    bool ends;         /* its end is recorded: the driver reports when it is reached */
    uint8_t behind;    /* enum behind: of what precedes its first launch */
};

/* Work that begins so soon after what its stream ran before follows it without a pause. */
#define TIMING_SPAN_FOLLOWS_NS 10000

/* Waits for other processes' time slices that are not explained yet; all zero: none. Settling thread only. */
#define OTHER_WAITS 512
struct other_waits {
    struct other_wait {
        int64_t from, to;
        uint64_t ns, found_at, key;
        struct cost *cost;
    } wait[OTHER_WAITS];
    unsigned first, end;
};

/* A context on a card of the control pages. Never freed; the entry of an ended context is reused. */
struct context_meter {
    struct context_meter *next;
    CUcontext context;
    uint64_t owner; /* the context's id; 0: ended */
    int card;
    bool lost; /* its card or context is broken: launches fail anyway, so none is held back */
    uint64_t unmeasured,
        unmeasured_ns; /* launches for which no span was free, and what they paid; not yet in the page */
    uint64_t free_head;
    struct timing_span *closed; /* pushed by program threads, taken as a whole by the settling thread */
    /* settling thread only: */
    struct timing_span *waiting, **waiting_end;
    struct busy_intervals busy;
    struct known_busy known;
    struct other_waits waits;
    struct card_clock clock;
    struct launch_wait wait;
    uint64_t stamp_ns; /* card time for recording an event: the minimum of `stamps` observations; any thread */
    uint32_t stamps;
    bool stamp_is_known, stamp_is_exact;
    CUevent reference; /* all card times are relative to it; a float of milliseconds is exact enough for some seconds */
    int64_t reference_ns;
    struct timing_span span[TIMING_SPANS];
};

/* The stream lives, has ended, or is about to be replaced by another one. */
enum meter_use { METER_LIVES, METER_ENDED, METER_TAKEN };

/* A stream. Never freed. The entry of an ended stream is reused: at once for a stream with the same handle, as if it
 * had continued; for another stream once its work is settled. */
struct stream_meter {
    struct stream_meter *next;
    uint64_t key[3]; /* handle, context's id, thread for a per-thread default stream; key[0] == 0: its context ended */
    uint64_t seen_epoch; /* meter_epoch when the context of its handle was last queried; valid while equal */
    CUstream stream;     /* a handle that any thread with the context current can use */
    struct context_meter *context_meter;
    int card;
    uint32_t use;              /* enum meter_use */
    bool others_may_record;    /* false for a thread's default stream */
    uint64_t marked_at;        /* when the end of a span was last recorded; any thread, approximate */
    struct stream_clock clock; /* any thread, without a lock, approximate */
    int64_t settled_to;        /* settling thread only: the end of the work settled so far, in card time */
    bool lost_count;           /* settling thread only: work of unknown length was added since an end was recorded */
    int64_t run_from;          /* settling thread only: since then it surely had work without a pause, ... */
    int64_t busy_to, turns_ns; /* ... until then, of which `turns_ns` may be other containers' time slices */
    uint8_t behind;            /* enum behind: what was added since the last launch; any thread */
    uint32_t unsettled;        /* spans open or not settled */
    uint32_t blocked;          /* the settling pass in which a span was found unfinished */
    uint32_t sought;           /* the settling pass in which the next span with a recorded end was checked, ... */
    bool found_finished;       /* ... and had ended */
    struct timing_span *open[TIMING_SPANS_OPEN];
    struct {
        struct timing_span *span;
        uint32_t launches;
        uint64_t since;
    } quiet[TIMING_SPANS_OPEN]; /* settling thread only */
};

/* True if all of the context's spans wait to be settled, for example when the helper thread got no processor for a
 * while. */
static inline bool context_meter_is_exhausted(const struct context_meter *context_meter) {
    return !(__atomic_load_n(&context_meter->free_head, __ATOMIC_RELAXED) & 0xffff);
}

/* Number of captures in progress in this process; may be too high, never too low. */
extern uint32_t meter_captures;

/* Paid work of this process in flight, in ns, by card of the control pages. */
extern uint64_t meter_ahead_ns[];

/* When the oldest piece of that work began, as far as is known. */
extern uint64_t meter_head_since[];

/* A bit per card: cards on which the container is best-effort beside protected ones, and cards on which it is protected
 * beside best-effort ones. */
extern uint32_t meter_gated, meter_tells;

/* The window in which every launch of this process is measured by itself. */
extern struct measuring_window meter_window;

/* Take the open span out of its place; false if it is not there any more. */
static inline bool timing_span_hold_this(struct timing_span **place, struct timing_span *span) {
    struct timing_span *found = span;
    if (!__atomic_compare_exchange_n(place, &found, TIMING_SPAN_HELD, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return false;
    span->place = place;
    return true;
}

/* Take whatever span is open at this place; NULL if there is none, or another thread has taken it out. */
static inline struct timing_span *timing_span_hold(struct timing_span **place) {
    struct timing_span *span = __atomic_load_n(place, __ATOMIC_RELAXED);
    return span && span != TIMING_SPAN_HELD && timing_span_hold_this(place, span) ? span : NULL;
}

/* Take the first available open span of the stream; NULL if there is none. */
static inline struct timing_span *timing_span_hold_any(struct stream_meter *meter) {
    struct timing_span *span = NULL;
    for (int i = 0; i < TIMING_SPANS_OPEN && !span; i++)
        span = timing_span_hold(&meter->open[i]);
    return span;
}

/* True if this card has both protected and best-effort containers, this one among them. */
static inline bool meter_is_classed(int card) {
    uint32_t gated = __atomic_load_n(&meter_gated, __ATOMIC_RELAXED);
    return (gated | __atomic_load_n(&meter_tells, __ATOMIC_RELAXED)) >> card & 1;
}

/* Close the stream's open span, if there is one, and open another: for one launch measured by itself, or for tallied
 * launches. NULL if none is free. */
struct timing_span *timing_span_begin(struct stream_meter *meter, struct timing_span *span, const struct cost *cost);

/* True if another stream of this process has work in flight on the card. */
bool timing_span_is_beside(const struct stream_meter *meter);

/* Is the launch measured by itself? */
static inline bool timing_span_is_alone(const struct stream_meter *meter, const struct cost *cost, bool in_window) {
    return span_plan_is_alone(cost, in_window) || (span_plan_varies(cost) && !timing_span_is_beside(meter));
}

/* The span for a launch of this kind; NULL if none is free. */
static inline struct timing_span *timing_span_take(struct stream_meter *meter, const struct cost *cost) {
    struct timing_span *span = timing_span_hold_any(meter);
    uint64_t ns = cost_ns(cost);
    if (!span || span->facts.expected_ns + ns > SPAN_PLAN_TALLY_NS ||
        timing_span_is_alone(meter, cost, measuring_window_is_open(&meter_window)))
        return timing_span_begin(meter, span, cost);
    __atomic_store_n(&meter->clock.idle_at, __atomic_load_n(&meter->clock.idle_at, __ATOMIC_RELAXED) + ns,
                     __ATOMIC_RELAXED);
    return span;
}

/* Add a launch before it is made: it is expected to keep its stream busy for `expected_ns`, and `paid_ns` were paid.
 * timing_span_remove() undoes this if the launch fails. */
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

/* True if the span ends with the launch just made. */
bool timing_span_is_over(const struct timing_span *span);

/* Close the span and hand it to the settling thread, recording its end if necessary. */
void timing_span_close(struct timing_span *span);

/* Close the span when no launch is about to follow. A stream that should be idle gets no record: beside other processes
 * the card would switch to this process just for that. Nor does one beside other streams' work, which may be ahead of
 * the record on the card: the program that waits for this stream would wait for theirs. */
void timing_span_flush(struct timing_span *span);

/* Close the span right after its last launch, whose call shows how long calls take. */
void timing_span_end(struct timing_span *span);

/* Close a span whose last launch was before `since`; settling thread only. */
void timing_span_close_quiet(struct timing_span *span, uint64_t since);

/* For a span closed without a record that should have ended: record its end if the driver reports that its stream still
 * has work. False: the stream is idle. Settling thread only. */
bool timing_span_is_late(struct timing_span *span);

/* Close the span without a record: it is settled once it is expected to have ended. */
void timing_span_drop(struct timing_span *span);

/* A span of the stream took longer or shorter than expected. */
void stream_meter_corrected(struct stream_meter *meter, uint64_t expected_ns, uint64_t took_ns);

/* The span is settled: decrement its stream's count, and free the span for reuse. */
void stream_meter_settled(struct stream_meter *meter);
void timing_span_free(struct timing_span *span);

#endif
