#include "attachment.h"
#include "cuda/span_hold.h"
#include "cuda/timing_span.h"
#include "interposer.h"
#include "page.h"
#include "token_bucket.h"

#include <errno.h>
#include <sched.h>

#define CAPTURE_RELAXED 2
#define CUDA_ERROR_NOT_READY 600
#define LOAD_MOST_NS 20000000u

uint32_t meter_captures;
uint64_t meter_ahead_ns[VCUDA_MAX_CARDS];
uint64_t meter_head_since[VCUDA_MAX_CARDS];
uint32_t meter_gated, meter_tells;
struct measuring_window meter_window;

/* The list of free spans: (changes << 16 | number + 1). */
static struct timing_span *take_free(struct context_meter *context_meter) {
    uint64_t head = __atomic_load_n(&context_meter->free_head, __ATOMIC_ACQUIRE), new;
    struct timing_span *span;
    do {
        if (!(head & 0xffff))
            return NULL;
        span = &context_meter->span[(head & 0xffff) - 1];
        struct timing_span *next = __atomic_load_n(&span->next, __ATOMIC_RELAXED);
        new = (head & ~UINT64_C(0xffff)) + 0x10000 + (next ? (uint64_t)(next - context_meter->span) + 1 : 0);
    } while (
        !__atomic_compare_exchange_n(&context_meter->free_head, &head, new, true, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
    return span;
}

void timing_span_free(struct timing_span *span) {
    struct context_meter *context_meter = span->context_meter;
    uint64_t head = __atomic_load_n(&context_meter->free_head, __ATOMIC_RELAXED), new;
    do {
        struct timing_span *next = head & 0xffff ? &context_meter->span[(head & 0xffff) - 1] : NULL;
        __atomic_store_n(&span->next, next, __ATOMIC_RELAXED);
        new = (head & ~UINT64_C(0xffff)) + 0x10000 + (uint64_t)(span - context_meter->span) + 1;
    } while (
        !__atomic_compare_exchange_n(&context_meter->free_head, &head, new, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
}

/* While some stream is captured, a call of ours must not count as one of the capture's: the thread's mode is relaxed
 * for its length. */
static int relax(void) {
    int mode = CAPTURE_RELAXED;
    if (!__atomic_load_n(&meter_captures, __ATOMIC_SEQ_CST) ||
        real.cuThreadExchangeStreamCaptureMode(&mode) != CUDA_SUCCESS)
        return -1;
    return mode;
}

static void restore(int mode) {
    if (mode >= 0)
        real.cuThreadExchangeStreamCaptureMode(&mode);
}

static bool make_events(struct timing_span *span) {
    CUcontext current = NULL, popped;
    if (span->end)
        return true;
    real.cuCtxGetCurrent(&current);
    bool elsewhere = current != span->context_meter->context;
    if (elsewhere && real.cuCtxPushCurrent_v2(span->context_meter->context) != CUDA_SUCCESS)
        return false;
    if (!span->start && real.cuEventCreate(&span->start, 0) != CUDA_SUCCESS)
        span->start = NULL;
    if (span->start && real.cuEventCreate(&span->end, 0) != CUDA_SUCCESS)
        span->end = NULL;
    if (elsewhere)
        real.cuCtxPopCurrent_v2(&popped);
    return span->end != NULL;
}

static bool is_told(int card) {
    return __builtin_expect(__atomic_load_n(&meter_tells, __ATOMIC_RELAXED) >> card & 1, 0);
}

static void note_busy(struct stream_meter *meter, uint64_t now) {
    struct vcuda_slot *slot = vcuda_slot();
    if (__atomic_fetch_add(&meter->unsettled, 1, __ATOMIC_ACQ_REL) || !slot)
        return;
    if (__atomic_load_n(&slot->inflight[meter->card], __ATOMIC_RELAXED) == 0) {
        __atomic_store_n(&slot->unsettled_since_ns, now, __ATOMIC_RELAXED);
        __atomic_store_n(&slot->heartbeat_ns, now, __ATOMIC_RELAXED);
    }
    if (__atomic_fetch_add(&slot->inflight[meter->card], 1, __ATOMIC_RELEASE) == 0 && is_told(meter->card))
        vcuda_touch_usage();
}

/* One span of this stream is over; after the last one the stream is not in flight any more. */
void stream_meter_settled(struct stream_meter *meter) {
    struct vcuda_slot *slot = vcuda_slot();
    if (__atomic_fetch_sub(&meter->unsettled, 1, __ATOMIC_ACQ_REL) == 1 && slot &&
        __atomic_load_n(&slot->inflight[meter->card], __ATOMIC_RELAXED) &&
        __atomic_fetch_sub(&slot->inflight[meter->card], 1, __ATOMIC_RELEASE) == 1 && is_told(meter->card))
        vcuda_touch_usage();
}

bool timing_span_is_beside(const struct stream_meter *meter) {
    const struct vcuda_slot *slot = vcuda_slot();
    uint32_t own = __atomic_load_n(&meter->unsettled, __ATOMIC_RELAXED) != 0;
    return slot && __atomic_load_n(&slot->inflight[meter->card], __ATOMIC_RELAXED) > own;
}

/* ---- what is expected of the stream
 * --------------------------------------------------------------------------------------------------------------- */

static struct stream_clock clock_of(const struct stream_meter *meter) {
    return (struct stream_clock){.idle_at = __atomic_load_n(&meter->clock.idle_at, __ATOMIC_RELAXED),
                                 .run_from = __atomic_load_n(&meter->clock.run_from, __ATOMIC_RELAXED),
                                 .waits = __atomic_load_n(&meter->clock.waits, __ATOMIC_RELAXED)};
}

static void set_clock(struct stream_meter *meter, const struct stream_clock *clock) {
    __atomic_store_n(&meter->clock.idle_at, clock->idle_at, __ATOMIC_RELAXED);
    __atomic_store_n(&meter->clock.run_from, clock->run_from, __ATOMIC_RELAXED);
    __atomic_store_n(&meter->clock.waits, clock->waits, __ATOMIC_RELAXED);
}

void stream_meter_corrected(struct stream_meter *meter, uint64_t expected_ns, uint64_t took_ns) {
    struct stream_clock clock = clock_of(meter);
    stream_clock_corrected(&clock, expected_ns, took_ns);
    set_clock(meter, &clock);
}

/* ---- taking and closing
 * --------------------------------------------------------------------------------------------------------------- */

/* Start measuring; false if the driver will not. What is to be held, and has its events, is held from here on. */
static bool record_start(struct timing_span *span, bool hold) {
    int mode = relax();
    bool has_events = make_events(span);
    uint64_t opened = vcuda_now_ns();
    span->facts.held = hold && has_events && span_hold(span->meter->stream, &span->facts);
    bool made = has_events && real.cuEventRecord(span->start, span->meter->stream) == CUDA_SUCCESS;
    restore(mode);
    span->facts.launched_at = vcuda_now_ns();
    span->facts.lead_ns = span->facts.launched_at - opened;
    measuring_window_spent(&meter_window, span->facts.lead_ns);
    return made;
}

/* What the record of an event takes on the card: what lies between two in a row on an idle stream. Where a record's
 * call takes the host longer than that, it is the call that lies between them: so one pair is held as launches are,
 * with the first of those. The thread waits for it, a hundred microseconds, and for the others, some ten each, or until
 * others' turn of the card is over; no longer, since what others put before it meanwhile may wait for this thread. */
#define STAMPS 4u      /* that are not held, ... */
#define STAMPS_MOST 8u /* ... and as many that were to be and were not all there in time */
#define STAMP_MOST_NS 3000u
#define STAMP_PATIENCE_NS 100000000u

static bool is_reached_soon(CUevent event) {
    uint64_t since = vcuda_now_ns();
    CUresult result;
    while ((result = real.cuEventQuery(event)) == CUDA_ERROR_NOT_READY && vcuda_now_ns() - since < STAMP_PATIENCE_NS)
        sched_yield();
    return result == CUDA_SUCCESS;
}

static bool record_pair(struct timing_span *span, float *ms) {
    CUstream stream = span->meter->stream;
    if (real.cuEventRecord(span->start, stream) != CUDA_SUCCESS ||
        real.cuEventRecord(span->end, stream) != CUDA_SUCCESS)
        return false;
    __atomic_store_n(&span->facts.ended_at, vcuda_now_ns(), __ATOMIC_RELEASE);
    return is_reached_soon(span->end) && real.cuEventElapsedTime(ms, span->start, span->end) == CUDA_SUCCESS;
}

/* Does the driver say that the stream has drained? Not asked while a stream is captured: a query would end the capture.
 * One that another thread begins after the look is not ended either, while this thread's calls are no part of it. */
static bool is_drained(const struct stream_meter *meter) {
    int mode = CAPTURE_RELAXED;
    if (__atomic_load_n(&meter_captures, __ATOMIC_SEQ_CST))
        return false;
    bool relaxed = real.cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS;
    CUresult result = real.cuStreamQuery(meter->stream);
    if (relaxed)
        real.cuThreadExchangeStreamCaptureMode(&mode);
    return result == CUDA_SUCCESS;
}

static void learn_stamp(struct timing_span *span, bool hold) {
    struct context_meter *context_meter = span->context_meter;
    uint32_t stamps = __atomic_load_n(&context_meter->stamps, __ATOMIC_RELAXED);
    bool is_exact = __atomic_load_n(&context_meter->stamp_is_exact, __ATOMIC_RELAXED);
    float ms = 0;
    hold = hold && !is_exact;
    if (stamps >= (hold ? STAMPS_MOST : STAMPS) || !is_drained(span->meter) || !make_events(span))
        return;
    int mode = CAPTURE_RELAXED; /* also of a capture that begins only now */
    bool relaxed = real.cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS;
    hold = hold && span_hold(span->meter->stream, &span->facts);
    bool told = record_pair(span, &ms), exact = told && hold && span_hold_succeeded(&span->facts);
    if (relaxed)
        real.cuThreadExchangeStreamCaptureMode(&mode);
    span->facts.ended_at = span->facts.held_until = 0;
    __atomic_store_n(&context_meter->stamps, stamps + !exact, __ATOMIC_RELAXED);
    if (!told)
        return;
    bool is_known = __atomic_exchange_n(&context_meter->stamp_is_known, true, __ATOMIC_RELAXED);
    uint64_t ns = ms > 0 ? (uint64_t)((double)ms * 1e6) : 0;
    uint64_t known = is_known ? __atomic_load_n(&context_meter->stamp_ns, __ATOMIC_RELAXED) : STAMP_MOST_NS;
    __atomic_store_n(&context_meter->stamp_ns, ns < known ? ns : known, __ATOMIC_RELAXED);
    if (exact)
        __atomic_store_n(&context_meter->stamp_is_exact, true, __ATOMIC_RELAXED);
}

static struct timing_span *open_span(struct stream_meter *meter, bool alone, bool idle, bool hold, uint64_t now) {
    struct timing_span *span = take_free(meter->context_meter);
    if (!span)
        return NULL;
    span->context_meter = meter->context_meter;
    span->meter = meter;
    span->place = NULL;
    span->behind = __atomic_exchange_n(&meter->behind, BEHIND_LAUNCHES, __ATOMIC_RELAXED);
    span->facts = (struct span_facts){.launched_at = now};
    span->paid_ns = 0;
    __atomic_store_n(&span->launches, 0, __ATOMIC_RELAXED);
    span->early = span->ends = false;
    if (alone && idle)
        learn_stamp(span, hold);
    span->alone = alone && record_start(span, hold);
    span->facts.stamp_ns = __atomic_load_n(&span->context_meter->stamp_ns, __ATOMIC_RELAXED);
    note_busy(meter, now);
    return span;
}

/* Neither where a host function would end a capture, nor where others make way for this process's work, nor while it
 * makes way for theirs on any card: the driver may call host functions one at a time, and those that wait at a gate do
 * so for long. */
static bool may_hold(const struct stream_meter *meter) {
    uint32_t gated = __atomic_load_n(&meter_gated, __ATOMIC_RELAXED);
    uint32_t tells = __atomic_load_n(&meter_tells, __ATOMIC_RELAXED);
    return !gated && !(tells >> meter->card & 1) && !__atomic_load_n(&meter_captures, __ATOMIC_SEQ_CST);
}

struct timing_span *timing_span_begin(struct stream_meter *meter, struct timing_span *span, const struct cost *cost) {
    int saved = errno;
    uint64_t now = vcuda_now_ns();
    bool in_window = measuring_window_look(&meter_window, now), alone = timing_span_is_alone(meter, cost, in_window);
    struct stream_clock clock = clock_of(meter);
    bool idle = now >= clock.idle_at && !clock.waits;
    if (span)
        timing_span_close(span);
    bool hold = alone && idle && may_hold(meter) && span_hold_wanted(cost, now);
    span = context_meter_is_exhausted(meter->context_meter) ? NULL : open_span(meter, alone, idle, hold, now);
    if (span) {
        now = span->facts.launched_at;
        span->early = alone && span_plan_may_be_beside(cost, in_window, measuring_window_is_early(&meter_window, now));
    }
    stream_clock_launched(&clock, now, idle, cost_ns(cost));
    clock.waits |= span && span->facts.held;
    set_clock(meter, &clock);
    errno = saved;
    return span;
}

void timing_span_remove(struct timing_span *span, uint64_t expected_ns, uint64_t paid_ns) {
    span->facts.expected_ns -= expected_ns;
    span->paid_ns -= paid_ns;
    __atomic_store_n(&span->launches, span->launches - 1, __ATOMIC_RELAXED);
}

void timing_span_put_new(struct stream_meter *meter, struct timing_span *span) {
    for (int i = 0; i < TIMING_SPANS_OPEN; i++) {
        struct timing_span *none = NULL;
        if (__atomic_compare_exchange_n(&meter->open[i], &none, span, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
            return;
    }
    timing_span_close(span);
}

/* To the one that settles. */
static void push(struct timing_span *span, uint64_t closed_at) {
    struct context_meter *context_meter = span->context_meter;
    int card = context_meter->card;
    span->closed_at = closed_at;
    if (span->place)
        __atomic_store_n(span->place, NULL, __ATOMIC_RELEASE);
    if (__atomic_fetch_add(&meter_ahead_ns[card], span->paid_ns, __ATOMIC_RELAXED) == 0)
        __atomic_store_n(&meter_head_since[card], closed_at, __ATOMIC_RELAXED);
    struct timing_span *head = __atomic_load_n(&context_meter->closed, __ATOMIC_RELAXED);
    do
        __atomic_store_n(&span->next, head, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&context_meter->closed, &head, span, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
}

/* Returns when the end had been recorded. */
static uint64_t record(struct timing_span *span, uint64_t now) {
    int mode = relax();
    span->ends = make_events(span) && real.cuEventRecord(span->end, span->meter->stream) == CUDA_SUCCESS;
    restore(mode);
    uint64_t ended_at = vcuda_now_ns();
    span->facts.slow_ns += ended_at - now;
    __atomic_store_n(&span->facts.ended_at, ended_at, __ATOMIC_RELEASE);
    __atomic_store_n(&span->meter->marked_at, ended_at, __ATOMIC_RELAXED);
    return ended_at;
}

/* The same before it is handed over; all of its launches had been made by `closed_at`. */
static uint64_t record_end(struct timing_span *span, uint64_t closed_at) {
    uint64_t ended_at = record(span, closed_at);
    push(span, closed_at);
    return ended_at;
}

static bool is_mark_due(const struct stream_meter *meter, uint64_t now) {
    return now - __atomic_load_n(&meter->marked_at, __ATOMIC_RELAXED) >= SPAN_PLAN_MARK_NS;
}

bool timing_span_is_over(const struct timing_span *span) {
    return span->alone || span_plan_is_full(span->facts.expected_ns, span->launches) ||
           (meter_is_classed(span->meter->card) && is_mark_due(span->meter, vcuda_now_ns()));
}

void timing_span_close(struct timing_span *span) {
    uint64_t now = vcuda_now_ns();
    if (span->alone || meter_is_classed(span->meter->card) || is_mark_due(span->meter, now))
        record_end(span, now);
    else
        push(span, now);
}

void timing_span_flush(struct timing_span *span) {
    uint64_t now = vcuda_now_ns();
    bool works = now < __atomic_load_n(&span->meter->clock.idle_at, __ATOMIC_RELAXED);
    if (meter_is_classed(span->meter->card) || (works && !timing_span_is_beside(span->meter)))
        timing_span_close(span);
    else
        push(span, now);
}

void timing_span_close_quiet(struct timing_span *span, uint64_t since) {
    if (meter_is_classed(span->meter->card) || !is_drained(span->meter))
        record_end(span, since);
    else
        push(span, since);
}

bool timing_span_is_late(struct timing_span *span) {
    if (is_drained(span->meter))
        return false;
    record(span, vcuda_now_ns());
    return span->ends;
}

void timing_span_end(struct timing_span *span) {
    static uint64_t call_ns;
    if (!span->alone) {
        timing_span_close(span);
        return;
    }
    uint64_t now = vcuda_now_ns(), took = now - span->facts.launched_at;
    uint64_t known = launch_call_ns(__atomic_load_n(&call_ns, __ATOMIC_RELAXED), took);
    __atomic_store_n(&call_ns, known, __ATOMIC_RELAXED);
    span->facts.loads = !cost_seen(span->cost) && took < LOAD_MOST_NS; /* a function's first launch may */
    span->facts.slow_ns = took - known;
    span->facts.call_ns = launch_reaches_ns(known, took, span->facts.loads);
    measuring_window_spent(&meter_window, record_end(span, now) - now);
}

/* Without a look at the clock: for a program that opens a span for each launch that would be most of what it costs. */
void timing_span_drop(struct timing_span *span) {
    push(span, span->facts.launched_at);
}
