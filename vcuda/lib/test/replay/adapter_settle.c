/* What settle.c and span_charge.c do around the driver, done around the modelled one: spans that have ended are read,
 * teach what their kernels cost, and are charged. */
#include "adapter_state.h"

#define REFERENCE_MOST_NS 4000000000

static bool look_at_wait(struct adapter *a, struct span *span) {
    struct span_facts *facts = &span->facts;
    if (facts->held) {
        holding_took(&a->holding, facts->held_until - (facts->launched_at - facts->lead_ns));
        return gpu_time_is_exact(facts);
    }
    if (facts->idle && span->launches == 1 && !facts->loads) {
        facts->wait_ns = launch_wait_ns(&a->wait);
        facts->exact_ns = exact_ns(span->kind[0], &facts->steady);
    }
    return true;
}

static void learn_wait(struct adapter *a, struct span *span, const struct gpu_interval *ran) {
    if (span->launches == 1 && span->facts.held)
        exact_told(span->kind[0], (uint64_t)(ran->to - ran->from));
    else if (span->facts.exact_ns)
        launch_wait_told(&a->wait, ran->to - ran->called, span->facts.exact_ns);
}

static bool read_span(struct adapter *a, struct span *span, struct gpu_interval *interval) {
    float elapsed = 0, from = 0;
    if (!a->has_reference) {
        a->reference_ns = (int64_t)span->facts.launched_at;
        a->has_reference = true;
        a->reference = span->start;
        span->start = driver_event_create(a->driver);
        if (!driver_event_elapsed(a->driver, a->reference, span->end, &elapsed) || !look_at_wait(a, span))
            return false;
        *interval = gpu_time_measured(&span->facts, a->reference_ns, ns_of(elapsed), 256, &a->clock);
        return true;
    }
    if (!driver_event_elapsed(a->driver, a->reference, span->start, &from) ||
        !driver_event_elapsed(a->driver, span->start, span->end, &elapsed) || !look_at_wait(a, span))
        return false;
    int64_t start = a->reference_ns + ns_of(from);
    *interval = gpu_time_measured(&span->facts, start, ns_of(elapsed), 256, &a->clock);
    if (start - a->reference_ns > REFERENCE_MOST_NS) {
        uint32_t old = a->reference;
        a->reference = span->start;
        a->reference_ns = start;
        span->start = old;
    }
    return true;
}

static void teach(const struct span *span, uint64_t own, uint64_t used) {
    if (span->kinds == 1)
        cost_measured(span->kind[0], own / span->launches, used / span->launches);
    else
        for (uint32_t i = 0; i < span->kinds; i++)
            cost_corrected(span->kind[i], span->kind_ns[i], own, used, span->facts.expected_ns);
}

static void settle(struct adapter *a, struct stream *stream, struct span *span) {
    struct gpu_interval interval;
    uint64_t expected = span->facts.expected_ns;
    bool measured = span->measured && read_span(a, span, &interval);
    if (!measured)
        interval = gpu_time_expected(&span->facts, stream->settled_to, 256, &a->clock);
    int64_t own = interval.to - interval.from;
    uint64_t used = (uint64_t)busy_intervals_add(&a->busy, interval.from, interval.to);
    if (measured && (int64_t)used >= own)
        learn_wait(a, span, &interval);
    if (measured) {
        teach(span, (uint64_t)own, used);
        stream_clock_corrected(&stream->clock, expected, (uint64_t)own);
        bucket_note_longest(&a->usage, (uint64_t)own / span->launches);
    }
    stream->settled_to = interval.to > stream->settled_to ? interval.to : stream->settled_to;
    a->ahead_ns -= span->paid_ns;
    bucket_settle(&a->usage, &a->view.card[0], used, span->paid_ns);
}

static bool is_finished(struct adapter *a, const struct span *span, uint64_t now) {
    if (span->measured)
        return driver_event_query(a->driver, span->end);
    return now >= span->closed_at + span->facts.expected_ns;
}

void adapter_settle_finished(struct adapter *a, uint64_t now) {
    for (uint32_t i = 0; i < STREAMS; i++) {
        struct stream *stream = &a->stream[i];
        while (stream->first != NONE && is_finished(a, &a->span[stream->first], now)) {
            uint32_t index = stream->first;
            stream->first = a->span[index].next;
            settle(a, stream, &a->span[index]);
            a->span[index].next = a->free;
            a->free = index;
        }
    }
}
