/* What timing_span.c does around the driver, done around the modelled one: spans are opened, joined and closed. */
#include "adapter_state.h"

/* As they are named there. */
#define LATE_NS 20000u
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

/* Close with a record of the end, or without where it was not measured. */
void adapter_close_span(struct adapter *a, uint32_t number) {
    struct stream *stream = &a->stream[number];
    struct span *span = &a->span[stream->open];
    if (span->measured) {
        uint64_t now = driver_now(a->driver);
        uint64_t last_at = span->last_at;
        if (now > last_at + LATE_NS && driver_stream_query(a->driver, number))
            span->facts.late_ns = now - last_at;
        driver_event_record(a->driver, span->end, number);
        span->facts.ended_at = driver_now(a->driver);
        span->facts.slow_ns += span->facts.ended_at - now;
        measuring_spent(&a->budget, span->facts.ended_at - now);
    }
    push(a, stream, span);
}

static void drop_span(struct adapter *a, uint32_t number, uint64_t drained_by) {
    struct span *span = &a->span[a->stream[number].open];
    span->measured = false;
    span->facts.drained_by = drained_by;
    push(a, &a->stream[number], span);
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

void adapter_take_span(struct adapter *a, uint32_t number, const struct cost *cost, uint64_t ns) {
    struct stream *stream = &a->stream[number];
    uint64_t now = driver_now(a->driver);
    struct span *span = stream->open == NONE ? NULL : &a->span[stream->open];
    if (span && span_plan_joins(&span->facts, span->measured, ns)) {
        stream_clock_launched(&stream->clock, now, false, ns);
        return;
    }
    bool may_ask = measuring_allowed(&a->budget, &a->newcomers, now) || cost_seen(cost) < COST_FIRST;
    enum stream_state said = stream_clock_state(&stream->clock, now);
    if (may_ask && span_plan_asks(said, span != NULL, false)) {
        bool drained = driver_stream_query(a->driver, number);
        stream_clock_observed(&stream->clock, now, drained);
        said = drained ? STREAM_IDLE : STREAM_BUSY;
        measuring_spent(&a->budget, driver_now(a->driver) - now);
    } else if (said == STREAM_UNSURE) {
        said = now >= stream->clock.idle_at ? STREAM_IDLE : STREAM_BUSY;
    }
    if (span && said == STREAM_IDLE) {
        drop_span(a, number, now);
        span = NULL;
    }
    if (!span && a->free != NONE) {
        stream->open = a->free;
        span = &a->span[a->free];
        a->free = span->next;
        span->launches = 0;
        span->paid_ns = 0;
        span->kinds = 0;
        span->measured = may_ask;
        bool idle = said == STREAM_IDLE,
             hold = may_ask && idle && holding_wanted(&a->holding, cost, driver_now(a->driver));
        uint64_t stamp = may_ask && idle ? stamp_ns(a, span, number, hold) : a->stamp_ns,
                 opened = driver_now(a->driver);
        span->facts = (struct span_facts){.idle = idle, .stamp_ns = stamp, .held = hold};
        if (span->facts.held)
            span->facts.held_until = driver_host_function(a->driver, number);
        if (span->measured) {
            driver_event_record(a->driver, span->start, number);
            measuring_spent(&a->budget, driver_now(a->driver) - opened);
        }
        span->facts.launched_at = driver_now(a->driver);
        span->facts.lead_ns = span->facts.launched_at - opened;
        driver_wake_helper(a->driver, span->facts.launched_at);
    }
    stream_clock_launched(&stream->clock, driver_now(a->driver), said == STREAM_IDLE, ns);
    stream->clock.waits |= span && span->facts.held;
}
