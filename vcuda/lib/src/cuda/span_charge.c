#include "cuda/span_charge.h"
#include "attachment.h"
#include "cuda/alone_cost.h"
#include "cuda/crossed_work.h"
#include "cuda/gate_view.h"
#include "cuda/gpu_time.h"
#include "cuda/held_idle.h"
#include "cuda/sharers.h"
#include "cuda/span_hold.h"
#include "cuda/timeline.h"
#include "interposer.h"
#include "slots.h"
#include "token_bucket.h"

#define REFERENCE_MOST_NS 4000000000 /* a float of milliseconds is then exact to half a microsecond */

static int64_t time_of(struct context_meter *context_meter, CUevent event, bool *failed) {
    float ms = 0;
    *failed |= real.cuEventElapsedTime(&ms, context_meter->reference, event) != CUDA_SUCCESS;
    return context_meter->reference_ns + (int64_t)((double)ms * 1e6);
}

/* The span's start becomes what times are relative to; the span gets a new event when it is next used. */
static void refer_to(struct timing_span *span, int64_t at) {
    CUevent old = span->context_meter->reference;
    span->context_meter->reference = span->start;
    span->context_meter->reference_ns = at;
    span->start = old;
    if (!old) { /* make both anew */
        span->start = span->end;
        span->end = NULL;
    }
}

/* How long its launch waited, if that is known of others. False: it was held, and was not all there in time. */
static bool look_at_wait(struct timing_span *span) {
    struct span_facts *facts = &span->facts;
    if (facts->held)
        return span_hold_succeeded(facts);
    if ((span->alone || facts->idle) && span->launches == 1 && !facts->loads) {
        facts->wait_ns = launch_wait_ns(&span->context_meter->wait);
        facts->exact_ns = exact_ns(span->kind[0].cost, &facts->steady);
    }
    return true;
}

/* One that ran beside no other of its process tells what launches of its kind take, if it was held; if not, how long
 * they wait. */
static void learn_wait(struct timing_span *span, const struct gpu_interval *ran) {
    const struct span_facts *facts = &span->facts;
    if (span->launches == 1 && facts->held)
        exact_told(span->kind[0].cost, (uint64_t)(ran->to - ran->from));
    else if (facts->exact_ns && !ran->waited)
        launch_wait_told(&span->context_meter->wait, ran->to - ran->called, facts->exact_ns);
}

/* When the span's work ran, by its events; false if they cannot be read. */
static bool read_events(struct timing_span *span, uint32_t stretch_q8, struct gpu_interval *interval) {
    struct context_meter *context_meter = span->context_meter;
    bool failed = false, first = !context_meter->reference;
    float ms = 0;
    int64_t from = first ? (int64_t)span->facts.launched_at : time_of(context_meter, span->start, &failed);
    failed |= real.cuEventElapsedTime(&ms, span->start, span->end) != CUDA_SUCCESS;
    if (failed || !look_at_wait(span))
        return false;
    int64_t elapsed = (int64_t)((double)ms * 1e6);
    *interval = span->alone ? gpu_time_alone(&span->facts, from, elapsed, &context_meter->clock)
                            : gpu_time_measured(&span->facts, from, elapsed, stretch_q8, &context_meter->clock);
    if (first || from - context_meter->reference_ns > REFERENCE_MOST_NS)
        refer_to(span, from);
    return true;
}

static void teach(struct timing_span *span, uint64_t own, uint64_t charged) {
    if (span->kinds == 1)
        cost_measured(span->kind[0].cost, own / span->launches, charged / span->launches);
    else
        for (uint32_t i = 0; i < span->kinds; i++)
            if (span->kind[i].count)
                cost_corrected(span->kind[i].cost, span->kind[i].ns, own, charged, span->facts.expected_ns);
}

/* Enter what was new of a span that ended at `to` of the card's time into the page's timeline. Work is settled in about
 * the order in which it ran, so the new part is the last one. Returns how much of it the container's other work leaves
 * room for. While one process has all of the work, only the sum over some time is bounded by the card's time: of
 * launches that were not measured nobody knows in which millisecond they ran. */
static uint64_t enter(const struct timing_span *span, int64_t to, int64_t fresh, uint32_t divided, bool beside,
                      uint64_t now) {
    int card = span->context_meter->card;
    int64_t end = to - span->context_meter->clock.offset_ns, launched = (int64_t)span->facts.launched_at;
    struct timeline_work work = {launched, end - fresh, end, end};
    if (!beside) {
        work.since = launched - TIMELINE_SPREAD_NS;
        work.until = (int64_t)now;
    }
    held_idle_ran(&vcuda_usage()->card[card], end > 0 ? (uint64_t)end : 0);
    return (uint64_t)timeline_add(&vcuda_usage()->timeline[card], &work, divided);
}

/* What it costs a card of its own, by what was measured while the host spoke; 0: not all of its work was. */
static uint64_t known_ns(const struct timing_span *span) {
    uint64_t ns = 0, launches = 0;
    for (uint32_t i = 0; i < span->kinds; i++) {
        uint64_t each = alone_cost_ns(span->kind[i].cost);
        if (span->kind[i].count && !each)
            return 0;
        ns += each * span->kind[i].count;
        launches += span->kind[i].count;
    }
    return launches == span->launches ? ns : 0;
}

static void remember(struct timing_span *span, uint64_t own, uint64_t now) {
    for (uint32_t i = 0; i < span->kinds; i++)
        if (span->kinds == 1)
            alone_cost_ran(span->kind[i].cost, own / span->launches, now);
        else if (span->kind[i].count && span->facts.expected_ns)
            alone_cost_ran(
                span->kind[i].cost,
                (uint64_t)((double)cost_ns(span->kind[i].cost) * (double)own / (double)span->facts.expected_ns), now);
}

/* Best-effort containers that are gated take turns: while one runs no other does, whatever the host sees them wait
 * with, so that nothing divides its time. */
static bool has_turns(int card) {
    return __atomic_load_n(&meter_gated, __ATOMIC_RELAXED) >> card & 1 && gate_mapped(card);
}

/* Launches that were not measured cost what they paid, as far as the card had time for it. They ended at `to` of the
 * card's time, for all that is known. */
static uint64_t charge_as_paid(struct timing_span *span, const struct vcuda_limits_view *view, int64_t to,
                               uint64_t now) {
    uint32_t divided = sharers_now(view, span->context_meter->card, now);
    uint64_t paid = span->paid_ns * divided / 256;
    span->meter->settled_to = to;
    uint64_t fits = enter(span, to, (int64_t)paid, divided, false, now);
    return fits < paid ? fits * 256 / divided : span->paid_ns;
}

/* They ran after what their stream ran before, as long as expected, and are over now. */
static uint64_t charge_tallied(struct timing_span *span, const struct vcuda_limits_view *view, uint64_t now) {
    const struct card_clock *clock = &span->context_meter->clock;
    uint32_t divided = sharers_now(view, span->context_meter->card, now);
    int64_t to = gpu_time_expected(&span->facts, span->meter->settled_to, divided, clock).to;
    int64_t latest = (int64_t)now + clock->offset_ns;
    return charge_as_paid(span, view, to < latest ? to : latest, now);
}

/* Does another stream of this process have work in flight on the card? */
static bool is_beside_streams(int card) {
    const struct vcuda_slot *slot = vcuda_slot();
    return slot && __atomic_load_n(&slot->inflight[card], __ATOMIC_RELAXED) > 1;
}

/* How a span's interval lies to the others of its context. */
struct share {
    struct gpu_interval ran;
    uint64_t took, fresh; /* how long it ran; how much of that, and of the records, beside no other work */
    uint64_t stamps;      /* what the records took of that */
    bool by_itself;
};

static struct share share_of(struct timing_span *span, const struct gpu_interval *ran, bool measured) {
    int64_t stamp = measured ? (int64_t)span->facts.stamp_ns : 0; /* the card was kept busy by the records too */
    struct share share = {.ran = *ran, .took = (uint64_t)(ran->to - ran->from)};
    share.fresh = (uint64_t)busy_intervals_add(&span->context_meter->busy, ran->from - stamp, ran->to + stamp);
    share.stamps = share.fresh < 2 * (uint64_t)stamp ? share.fresh : 2 * (uint64_t)stamp;
    share.by_itself = share.fresh - share.stamps >= share.took;
    return share;
}

/* Charge what is new of the span's interval; what was measured teaches what its launches cost. */
static uint64_t charge_interval(struct timing_span *span, const struct vcuda_limits_view *view,
                                const struct share *share, uint32_t divided, bool measured, uint64_t now) {
    struct stream_meter *meter = span->meter;
    const int card = span->context_meter->card;
    const struct gpu_interval *ran = &share->ran;
    uint32_t gain = view->card[card].gain_q8;
    uint64_t known = measured ? known_ns(span) : 0;
    bool alone = has_turns(card), is_crossed = measured && is_crossed_work(span, view, now);
    if (measured && share->by_itself && !is_crossed)
        learn_wait(span, ran);
    uint64_t met = is_crossed ? crossed_work_met_ns(span, view, ran, known, share->fresh, now) : 0;
    if (known && is_crossed)
        divided = crossed_work_stretch_q8(share->took, known, alone);
    else if (known && !alone)
        divided = sharers_during(view, card, now, share->took, known);
    if (measured && !bucket_is_silent(view, now) && (share->by_itself || !known || !is_crossed))
        remember(span, bucket_used(share->took, divided, 256), now);
    /* It is not divided by how long it took: that may be the container's own other streams', charged for that. */
    uint32_t divisor = known && is_crossed ? 256 : divided;
    bool beside_process = slots_busy(vcuda_usage(), card) > 1;
    uint64_t fits = enter(span, ran->to, (int64_t)share->fresh, divisor, beside_process, now), own = share->fresh - met;
    uint64_t used = bucket_used(fits < own ? fits : own, divisor, gain);
    if (span->alone || ran->to > meter->settled_to)
        meter->settled_to = ran->to;
    if (measured) {
        uint64_t took = bucket_used(share->took, divided, gain);
        uint64_t added = beside_process ? used : bucket_used(own, divisor, gain);
        teach(span, took, added > share->stamps ? added - share->stamps : 0);
        stream_meter_corrected(meter, span->facts.expected_ns, took);
        bucket_note_longest(&vcuda_usage()->card[card], took / span->launches);
    }
    return used;
}

uint64_t span_charge(struct timing_span *span, const struct vcuda_limits_view *view, bool measured, uint64_t now) {
    const int card = span->context_meter->card;
    uint32_t divided = has_turns(card) ? 256 : sharers_now(view, card, now);
    struct gpu_interval ran;
    if (span->alone) /* what its stream waited for is over */
        __atomic_store_n(&span->meter->clock.waits, false, __ATOMIC_RELAXED);
    measured = measured && read_events(span, divided, &ran);
    if (span->tallied || (span->alone && !measured))
        return charge_tallied(span, view, now);
    if (!measured)
        ran = gpu_time_expected(&span->facts, span->meter->settled_to, divided, &span->context_meter->clock);
    struct share share = share_of(span, &ran, measured);
    bool beside = is_beside_streams(card);
    if (span->alone)
        meter_window.unsure |= beside || cost_is_unsure(span->kind[0].cost);
    if (span->early && beside)
        return charge_as_paid(span, view, ran.to, now);
    return charge_interval(span, view, &share, divided, measured, now);
}
