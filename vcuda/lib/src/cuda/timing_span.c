#include "cuda/timing_span.h"

#include <errno.h>

#include "interposer.h"
#include "page.h"

#define CAPTURE_RELAXED 2
/* A launch call returns within this; what takes longer was the machine doing something else. */
#define CALL_NS 20000u

uint32_t meter_captures;
uint64_t meter_ahead_ns[VCUDA_MAX_CARDS];

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

bool timing_span_record(CUevent event, CUstream stream) {
    return real.cuEventRecord(event, stream) == CUDA_SUCCESS;
}

static void note_busy(struct stream_meter *meter) {
    struct vcuda_slot *slot = vcuda_slot();
    if (__atomic_fetch_add(&meter->unsettled, 1, __ATOMIC_ACQ_REL) == 0 && slot)
        __atomic_fetch_add(&slot->inflight[meter->card], 1, __ATOMIC_RELAXED);
}

/* One span of this stream is over; after the last one the stream is not in flight any more. */
void stream_meter_settled(struct stream_meter *meter) {
    struct vcuda_slot *slot = vcuda_slot();
    if (__atomic_fetch_sub(&meter->unsettled, 1, __ATOMIC_ACQ_REL) == 1 && slot &&
        __atomic_load_n(&slot->inflight[meter->card], __ATOMIC_RELAXED))
        __atomic_fetch_sub(&slot->inflight[meter->card], 1, __ATOMIC_RELAXED);
}

static struct timing_span *open_span(struct stream_meter *meter) {
    struct timing_span *span = take_free(meter->context_meter);
    if (!span)
        return NULL;
    int mode = relax();
    span->context_meter = meter->context_meter;
    span->meter = meter;
    span->expected_ns = span->unsure_ns = span->late_ns = 0;
    __atomic_store_n(&span->launches, 0, __ATOMIC_RELAXED);
    span->kinds = 0;
    span->was_idle = !__atomic_load_n(&meter->unsettled, __ATOMIC_RELAXED);
    bool made = make_events(span);
    span->opened_ns = vcuda_now_ns();
    bool recorded = made && timing_span_record(span->start, meter->stream);
    restore(mode);
    if (!recorded) {
        timing_span_free(span);
        return NULL;
    }
    span->measured = true;
    note_busy(meter);
    return span;
}

struct timing_span *timing_span_take(struct stream_meter *meter) {
    for (int i = 0; i < TIMING_SPANS_OPEN; i++) {
        if (!__atomic_load_n(&meter->open[i], __ATOMIC_RELAXED))
            continue;
        struct timing_span *span = __atomic_exchange_n(&meter->open[i], NULL, __ATOMIC_ACQUIRE);
        if (span)
            return span;
    }
    int saved = errno;
    struct timing_span *span = open_span(meter);
    errno = saved;
    return span;
}

void timing_span_add(struct timing_span *span, struct cost *cost, uint64_t expected_ns) {
    span->expected_ns += expected_ns;
    __atomic_store_n(&span->launches, span->launches + 1, __ATOMIC_RELAXED);
    uint32_t i = span->kinds;
    while (i > 0 && span->kind[i - 1].cost != cost)
        i--;
    if (i) {
        span->kind[i - 1].count++;
    } else if (span->kinds < TIMING_SPAN_KINDS) {
        span->kind[span->kinds].cost = cost;
        span->kind[span->kinds++].count = 1;
    }
}

void timing_span_remove(struct timing_span *span, struct cost *cost, uint64_t expected_ns) {
    span->expected_ns -= expected_ns;
    __atomic_store_n(&span->launches, span->launches - 1, __ATOMIC_RELAXED);
    for (uint32_t i = 0; i < span->kinds; i++)
        if (span->kind[i].cost == cost)
            span->kind[i].count--;
}

void timing_span_put(struct stream_meter *meter, struct timing_span *span) {
    for (int i = 0; i < TIMING_SPANS_OPEN; i++) {
        struct timing_span *none = NULL;
        if (__atomic_compare_exchange_n(&meter->open[i], &none, span, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
            return;
    }
    timing_span_close(span, vcuda_now_ns());
}

/* To the one that settles. */
static void push(struct timing_span *span) {
    struct context_meter *context_meter = span->context_meter;
    __atomic_fetch_add(&meter_ahead_ns[context_meter->card], span->expected_ns, __ATOMIC_RELAXED);
    struct timing_span *head = __atomic_load_n(&context_meter->closed, __ATOMIC_RELAXED);
    do
        __atomic_store_n(&span->next, head, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&context_meter->closed, &head, span, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
}

void timing_span_close(struct timing_span *span, uint64_t now) {
    int mode = relax();
    if (span->was_idle && span->launches == 1 && now > span->opened_ns + CALL_NS)
        span->late_ns = now - span->opened_ns - CALL_NS;
    span->measured = timing_span_record(span->end, span->meter->stream);
    restore(mode);
    span->closed_ns = vcuda_now_ns();
    span->unsure_ns = span->closed_ns > now + CALL_NS ? span->closed_ns - now : 0;
    push(span);
}

/* Without a record: what has not been measured is settled as expected. */
void timing_span_drop(struct timing_span *span) {
    span->measured = false;
    span->closed_ns = vcuda_now_ns();
    push(span);
}
