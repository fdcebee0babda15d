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
    if (!facts->loads) {
        facts->wait_ns = launch_wait_ns(&a->wait);
        facts->exact_ns = exact_ns(span->cost, &facts->steady);
    }
    return true;
}

static void learn_wait(struct adapter *a, struct span *span, const struct gpu_interval *ran) {
    if (span->facts.held)
        exact_told(span->cost, (uint64_t)(ran->to - ran->from));
    else if (span->facts.exact_ns && !ran->waited)
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
        *interval = gpu_time_alone(&span->facts, a->reference_ns, ns_of(elapsed), &a->clock);
        return true;
    }
    if (!driver_event_elapsed(a->driver, a->reference, span->start, &from) ||
        !driver_event_elapsed(a->driver, span->start, span->end, &elapsed) || !look_at_wait(a, span))
        return false;
    int64_t start = a->reference_ns + ns_of(from);
    *interval = gpu_time_alone(&span->facts, start, ns_of(elapsed), &a->clock);
    if (start - a->reference_ns > REFERENCE_MOST_NS) {
        uint32_t old = a->reference;
        a->reference = span->start;
        a->reference_ns = start;
        span->start = old;
    }
    return true;
}

/* What still fits into the page's timeline. */
static uint64_t enter(struct adapter *a, const struct span *span, int64_t to, uint64_t fresh, uint64_t until) {
    int64_t end = to - a->clock.offset_ns;
    struct timeline_work work = {(int64_t)span->facts.launched_at - TIMELINE_SPREAD_NS, end - (int64_t)fresh, end,
                                 (int64_t)until};
    return (uint64_t)timeline_add(&a->timeline, &work, 256);
}

static uint64_t streams_in_flight(const struct adapter *a) {
    uint64_t count = 0;
    for (uint32_t i = 0; i < STREAMS; i++)
        count += a->stream[i].open != NONE || a->stream[i].first != NONE;
    return count ? count : 1;
}

static uint64_t charge_tallied(struct adapter *a, struct stream *stream, const struct span *span, uint64_t now) {
    int64_t latest = (int64_t)now + a->clock.offset_ns, before = stream->settled_to;
    int64_t called = (int64_t)span->closed_at + a->clock.offset_ns;
    float elapsed = 0;
    bool ended = span->ends && !span->measured && a->has_reference &&
                 driver_event_elapsed(a->driver, a->reference, span->end, &elapsed);
    int64_t to = a->reference_ns + ns_of(elapsed);
    if (!ended)
        to = gpu_time_expected(&span->facts, before, 256, &a->clock).to;
    stream->settled_to = to < latest ? to : latest;
    uint64_t record_ns = span->ends ? span->facts.stamp_ns * (streams_in_flight(a) > 1 ? 3 : 4) / 4 : 0;
    uint64_t used = enter(a, span, stream->settled_to, span->paid_ns + record_ns, now);
    int64_t since = (before > called ? before : called) - a->clock.offset_ns;
    if (ended && to > (int64_t)span->facts.ended_at + a->clock.offset_ns)
        known_busy_add(&a->known, since, since, since, to - a->clock.offset_ns);
    return used;
}

bool adapter_is_beside(const struct adapter *a, const struct stream *stream) {
    for (uint32_t i = 0; i < STREAMS; i++)
        if (&a->stream[i] != stream && (a->stream[i].open != NONE || a->stream[i].first != NONE))
            return true;
    return false;
}

static uint64_t charge_measured(struct adapter *a, struct stream *stream, struct span *span,
                                const struct gpu_interval *ran, uint64_t now) {
    const int64_t own = ran->to - ran->from, stamp = (int64_t)span->facts.stamp_ns;
    const int64_t added = busy_intervals_lack(&a->busy, ran->from, ran->to);
    uint64_t fresh = (uint64_t)busy_intervals_add(&a->busy, ran->from - stamp, ran->to + stamp);
    stream->settled_to = ran->to;
    if (added >= own)
        learn_wait(a, span, ran);
    a->window.unsure |= cost_is_unsure(span->cost) || adapter_is_beside(a, stream);
    if (span->early && adapter_is_beside(a, stream))
        return enter(a, span, ran->to, span->paid_ns, now);
    uint64_t used = enter(a, span, ran->to, fresh, now);
    int64_t since = ran->from - a->clock.offset_ns;
    known_busy_add(&a->known, since, since, since, ran->to - a->clock.offset_ns);
    cost_measured(span->cost, (uint64_t)own, (uint64_t)added);
    stream_clock_corrected(&stream->clock, span->facts.expected_ns, (uint64_t)own);
    bucket_note_longest(&a->usage, (uint64_t)own);
    return used;
}

static void settle(struct adapter *a, struct stream *stream, struct span *span, uint64_t now) {
    struct gpu_interval ran;
    if (span->measured)
        stream->clock.waits = false;
    uint64_t used = span->measured && read_span(a, span, &ran) ? charge_measured(a, stream, span, &ran, now)
                                                               : charge_tallied(a, stream, span, now);
    a->ahead_ns -= span->paid_ns;
    bucket_settle(&a->usage, &a->view.card[0], used, span->paid_ns);
}

/* Has a span ended that the stream ran after this one? */
static bool is_overtaken(struct adapter *a, const struct span *span) {
    uint32_t next = span->next;
    while (next != NONE && !a->span[next].ends)
        next = a->span[next].next;
    return next != NONE && driver_event_query(a->driver, a->span[next].end);
}

static bool is_finished(struct adapter *a, const struct stream *stream, const struct span *span, uint64_t now) {
    if (span->ends)
        return driver_event_query(a->driver, span->end);
    int64_t before = stream->settled_to - a->clock.offset_ns, launched = (int64_t)span->facts.launched_at;
    return (int64_t)now >= (before > launched ? before : launched) + (int64_t)span->facts.expected_ns ||
           is_overtaken(a, span);
}

/* The stream whose first span has ended and was launched before those of the others; NULL: none has. */
static struct stream *next_finished(struct adapter *a, uint64_t now) {
    struct stream *found = NULL;
    for (uint32_t i = 0; i < STREAMS; i++) {
        struct stream *stream = &a->stream[i];
        if (stream->first != NONE &&
            (!found || a->span[stream->first].facts.launched_at < a->span[found->first].facts.launched_at) &&
            is_finished(a, stream, &a->span[stream->first], now))
            found = stream;
    }
    return found;
}

void adapter_settle_finished(struct adapter *a, uint64_t now) {
    struct stream *stream;
    while ((stream = next_finished(a, now))) {
        uint32_t index = stream->first;
        stream->first = a->span[index].next;
        settle(a, stream, &a->span[index], now);
        a->span[index].next = a->free;
        a->free = index;
    }
    const struct known_part all = {256, 256};
    int64_t lacked = known_busy_compare(&a->known, &a->timeline, all, false, (int64_t)now);
    bucket_settle(&a->usage, &a->view.card[0], (uint64_t)lacked, 0);
}
