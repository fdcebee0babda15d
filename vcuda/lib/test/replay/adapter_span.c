/* What timing_span.c does around the driver, done around the modelled one: spans are opened, joined and closed. */
#include "adapter_state.h"

/* As they are named there. */
#define STAMPS 4

static void push(struct adapter *a, struct stream *stream, struct span *span) {
    uint32_t index = (uint32_t)(span - a->span);
    span->next = NONE;
    span->closed_at = driver_now(a->driver);
    if (stream->first == NONE)
        stream->first = index;
    else
        a->span[stream->last].next = index;
    stream->last = index;
    stream->open = NONE;
    a->ahead_ns += span->paid_ns;
}

/* Close with a record of the end, if it is measured or the stream's last one was long ago. */
void adapter_close_span(struct adapter *a, uint32_t number) {
    struct stream *stream = &a->stream[number];
    struct span *span = &a->span[stream->open];
    uint64_t now = driver_now(a->driver);
    span->ends = span->measured || now - stream->marked_at >= SPAN_PLAN_MARK_NS;
    if (span->ends) {
        driver_event_record(a->driver, span->end, number);
        span->facts.ended_at = driver_now(a->driver);
        span->facts.slow_ns += span->facts.ended_at - now;
        stream->marked_at = span->facts.ended_at;
    }
    if (span->measured)
        measuring_window_spent(&a->window, span->facts.ended_at - now);
    push(a, stream, span);
    span->closed_at = now;
}

/* What the record of an event takes on the card: two in a row on an idle stream, a few times, and once held. */
static uint64_t stamp_ns(struct adapter *a, const struct span *span, uint32_t number, bool hold) {
    float elapsed = 0;
    hold = hold && !a->stamp_is_exact;
    if (a->stamps >= STAMPS && !hold)
        return a->stamp_ns;
    if (hold)
        driver_host_function(a->driver, number);
    driver_event_record(a->driver, span->start, number);
    driver_event_record(a->driver, span->end, number);
    while (!driver_event_query(a->driver, span->end))
        ;
    driver_event_elapsed(a->driver, span->start, span->end, &elapsed);
    if (!(a->stamps + a->stamp_is_exact) || (uint64_t)ns_of(elapsed) < a->stamp_ns)
        a->stamp_ns = (uint64_t)ns_of(elapsed);
    a->stamps += !hold;
    a->stamp_is_exact |= hold;
    return a->stamp_ns;
}

static void record_start(struct adapter *a, struct span *span, uint32_t number, bool idle) {
    bool hold = idle && holding_wanted(&a->holding, span->cost, driver_now(a->driver));
    if (idle)
        a->stamp_ns = stamp_ns(a, span, number, hold);
    uint64_t opened = driver_now(a->driver);
    span->facts = (struct span_facts){.held = hold, .stamp_ns = a->stamp_ns};
    if (hold)
        span->facts.held_until = driver_host_function(a->driver, number);
    driver_event_record(a->driver, span->start, number);
    span->facts.launched_at = driver_now(a->driver);
    span->facts.lead_ns = span->facts.launched_at - opened;
    measuring_window_spent(&a->window, span->facts.lead_ns);
}

void adapter_take_span(struct adapter *a, uint32_t number, struct cost *cost) {
    struct stream *stream = &a->stream[number];
    uint64_t now = driver_now(a->driver), ns = cost_ns(cost);
    bool is_open = measuring_window_look(&a->window, now), early = measuring_window_is_early(&a->window, now);
    bool alone = span_plan_is_alone(cost, is_open) || (span_plan_varies(cost) && !adapter_is_beside(a, stream));
    bool idle = now >= stream->clock.idle_at && !stream->clock.waits;
    if (stream->open != NONE && (alone || a->span[stream->open].facts.expected_ns + ns > SPAN_PLAN_TALLY_NS))
        adapter_close_span(a, number);
    if (stream->open == NONE && a->free != NONE) {
        struct span *span = &a->span[a->free];
        stream->open = a->free;
        a->free = span->next;
        span->launches = 0;
        span->paid_ns = 0;
        span->measured = alone;
        span->early = alone && span_plan_may_be_beside(cost, is_open, early);
        span->cost = cost;
        if (alone)
            record_start(a, span, number, idle);
        else
            span->facts = (struct span_facts){.launched_at = now, .stamp_ns = a->stamp_ns};
        driver_wake_helper(a->driver, span->facts.launched_at);
    }
    stream_clock_launched(&stream->clock, driver_now(a->driver), idle, ns);
    stream->clock.waits |= stream->open != NONE && a->span[stream->open].facts.held;
}
