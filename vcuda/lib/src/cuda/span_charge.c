#include "cuda/span_charge.h"
#include "attachment.h"
#include "cuda/account_error.h"
#include "cuda/alone_cost.h"
#include "cuda/crossed_work.h"
#include "cuda/gate_view.h"
#include "cuda/gpu_time.h"
#include "cuda/held_idle.h"
#include "cuda/other_processes.h"
#include "cuda/shared_cost.h"
#include "cuda/sharers.h"
#include "cuda/span_hold.h"
#include "cuda/stall.h"
#include "timeline.h"
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
    if (!facts->loads) {
        facts->wait_ns = launch_wait_ns(&span->context_meter->wait);
        facts->exact_ns = exact_ns(span->cost, &facts->steady);
    }
    return true;
}

/* One that ran beside no other of its process tells what launches of its kind take, if it was held; if not, how long
 * they wait. */
static void learn_wait(struct timing_span *span, const struct gpu_interval *ran) {
    if (span->facts.held)
        exact_told(span->cost, (uint64_t)(ran->to - ran->from));
    else if (span->facts.exact_ns && !ran->waited)
        launch_wait_told(&span->context_meter->wait, ran->to - ran->called, span->facts.exact_ns);
}

/* When the launch ran, by its events; false if they cannot be read. */
static bool read_events(struct timing_span *span, struct gpu_interval *interval) {
    struct context_meter *context_meter = span->context_meter;
    bool failed = false, first = !context_meter->reference;
    float ms = 0;
    int64_t from = first ? (int64_t)span->facts.launched_at : time_of(context_meter, span->start, &failed);
    failed |= real.cuEventElapsedTime(&ms, span->start, span->end) != CUDA_SUCCESS;
    if (failed || !look_at_wait(span))
        return false;
    *interval = gpu_time_alone(&span->facts, from, (int64_t)((double)ms * 1e6), &context_meter->clock);
    if (first || from - context_meter->reference_ns > REFERENCE_MOST_NS)
        refer_to(span, from);
    return true;
}

/* Enter what was new of a span that ended at `to` of the card's time into the page's timeline. Work is settled in about
 * the order in which it ran, so the new part is the last one. Returns how much of it the container's other work leaves
 * room for: over some time, since of launches that were not measured nobody knows in which millisecond they ran. */
static uint64_t enter(const struct timing_span *span, int64_t to, int64_t fresh, uint32_t divided, uint64_t now) {
    int card = span->context_meter->card;
    int64_t end = to - span->context_meter->clock.offset_ns, launched = (int64_t)span->facts.launched_at;
    struct timeline_work work = {launched - TIMELINE_SPREAD_NS, end - fresh, end, (int64_t)now};
    held_idle_ran(&vcuda_usage()->card[card], span->facts.launched_at, end > 0 ? (uint64_t)end : 0);
    return (uint64_t)timeline_add(&vcuda_usage()->timeline[card], &work, divided);
}

/* Best-effort containers that are gated take turns: while one runs no other does, whatever the host sees them wait
 * with, so that nothing divides its time. */
static bool has_turns(int card) {
    return __atomic_load_n(&meter_gated, __ATOMIC_RELAXED) >> card & 1 && gate_mapped(card);
}

static uint32_t divisor_of(const struct vcuda_limits_view *view, int card, uint64_t now) {
    return has_turns(card) ? 256 : sharers_now(view, card, now);
}

/* What the record of a span's end adds to the card's time: now and then nothing, if other streams' work runs beside. */
static uint64_t record_ns(const struct timing_span *span) {
    const struct vcuda_slot *slot = vcuda_slot();
    uint32_t streams = slot ? __atomic_load_n(&slot->inflight[span->context_meter->card], __ATOMIC_RELAXED) : 1;
    return span->ends ? span->facts.stamp_ns * (streams > 1 ? 3 : 4) / 4 : 0;
}

/* By how much others stretch launches that were not measured. If the page says what others are charged, that is the
 * most: kernels of a whole time slice are in flight all the time beside short ones, but have less than half of it. */
static uint32_t stretch_of(const struct vcuda_limits_view *view, int card, uint64_t now) {
    uint32_t divided = divisor_of(view, card, now), others_q16 = view->card[card].others_part_q16;
    uint32_t by_charges = others_q16 && others_q16 < 65536 ? 65536 * 256u / (65536 - others_q16) : UINT32_MAX;
    return divided > 256 && by_charges < divided ? by_charges : divided;
}

/* Launches that were not measured cost what they paid, and the record of their end what a record takes, as far as the
 * card had time for it. They ended at `to` of the card's time, for all that is known. */
static uint64_t charge_as_paid(struct timing_span *span, const struct vcuda_limits_view *view, int64_t to,
                               uint64_t now) {
    uint32_t divided = stretch_of(view, span->context_meter->card, now);
    account_error_tallied(&vcuda_usage()->card[span->context_meter->card], span->cost, span->paid_ns);
    uint64_t paid = span->paid_ns + record_ns(span), wall = paid * divided / 256;
    span->meter->settled_to = to;
    uint64_t fits = enter(span, to, (int64_t)wall, divided, now);
    other_processes_told(span, to - (int64_t)wall, to);
    return fits < wall ? fits * 256 / divided : paid;
}

/* The stream had work from `from` to `to` of the card's time. As it began others may have had the card, for a turn of
 * each. */
static void know_busy(struct stream_meter *meter, int64_t from, int64_t to, uint32_t most) {
    struct context_meter *context_meter = meter->context_meter;
    int64_t offset = context_meter->clock.offset_ns;
    if (from > meter->busy_to + TIMING_SPAN_FOLLOWS_NS) {
        meter->turns_ns = shared_cost_turns_ns(most);
        meter->run_from = from;
    }
    meter->busy_to = to;
    if (meter_is_classed(context_meter->card) || from >= to)
        return;
    int64_t turns = meter->turns_ns < to - from ? meter->turns_ns : to - from;
    meter->turns_ns -= turns;
    int64_t since = from + turns + other_processes_switches_ns(context_meter, from + turns, to);
    known_busy_add(&context_meter->known, meter->run_from - offset, from - offset, since - offset, to - offset);
}

/* How much of the time in which the process surely had work the timeline must hold. As a rule the process had at least
 * an equal part beside the most containers. In a long run it had all but what others are charged, if the page says
 * that, and one part in SWITCHES_PARTS for the card's switches. */
#define SWITCHES_PARTS 12

static struct known_part own_part(const struct vcuda_limits_view *view, int card, uint32_t divided, uint64_t now) {
    uint32_t even = divided * 256 / sharers_peak(view, card, now), others_q16 = view->card[card].others_part_q16;
    uint32_t taken = others_q16 + 65536 / SWITCHES_PARTS;
    uint32_t rest = others_q16 && taken < 65536 ? (uint32_t)((uint64_t)divided * (65536 - taken) >> 16) : 0;
    return (struct known_part){even, rest > even ? rest : even};
}

uint64_t span_charge_known(struct context_meter *context_meter, const struct vcuda_limits_view *view, uint64_t now) {
    int card = context_meter->card;
    uint32_t divided = sharers_now(view, card, now);
    struct known_part part = own_part(view, card, divided, now);
    uint64_t lacked = (uint64_t)known_busy_compare(&context_meter->known, &vcuda_usage()->timeline[card], part,
                                                   divided > 256, (int64_t)now);
    lacked += other_processes_lacked_ns(context_meter, now);
    return bucket_used(lacked, divided, view->card[card].gain_q8);
}

/* They ended where the end was recorded, or else, as long as expected after what their stream ran before; they are over
 * now. */
static uint64_t charge_tallied(struct timing_span *span, const struct vcuda_limits_view *view, bool ended,
                               uint64_t now) {
    struct context_meter *context_meter = span->context_meter;
    const struct card_clock *clock = &context_meter->clock;
    uint32_t divided = divisor_of(view, context_meter->card, now);
    bool failed = !ended || !context_meter->reference;
    int64_t latest = (int64_t)now + clock->offset_ns, to = failed ? 0 : time_of(context_meter, span->end, &failed);
    if (failed)
        to = gpu_time_expected(&span->facts, span->meter->settled_to, divided, clock).to;
    int64_t before = span->meter->settled_to;
    uint64_t paid = charge_as_paid(span, view, to < latest ? to : latest, now);
    int64_t called = (int64_t)span->closed_at + clock->offset_ns;
    span->meter->lost_count |= span->behind != BEHIND_LAUNCHES;
    if (failed)
        return paid;
    /* If the end was reached before its record's call was over, the stream may have been idle when it was made. */
    if (!span->meter->lost_count && to > (int64_t)span->facts.ended_at + clock->offset_ns)
        know_busy(span->meter, before > called ? before : called, to, sharers_peak(view, context_meter->card, now));
    span->meter->lost_count = false;
    return paid;
}

/* How a span's interval lies to the others of its context, and to the container's other processes. */
struct share {
    struct gpu_interval ran;
    uint64_t took, fresh; /* how long it ran; how much of that, and of the records, beside no other work */
    uint64_t stamps;      /* what the records took of that */
    bool by_itself;
    bool follows; /* the card was at work for its process until it began */
};

/* Did the card work for the process until a moment before it? By what was measured, or as it had to wait for an event.
 */
static bool follows_own(const struct timing_span *span, const struct gpu_interval *ran) {
    int64_t from = ran->from, before = from - TIMING_SPAN_FOLLOWS_NS;
    return span->meter->settled_to >= before || (ran->waited && span->behind == BEHIND_EVENT) ||
           busy_intervals_lack(&span->context_meter->busy, before, from) < TIMING_SPAN_FOLLOWS_NS;
}

static struct share share_of(struct timing_span *span, const struct gpu_interval *ran, bool shared, uint64_t now) {
    struct busy_intervals *busy = &span->context_meter->busy;
    int64_t stamp = (int64_t)span->facts.stamp_ns; /* the card was kept busy by the records too */
    bool follows = follows_own(span, ran);
    uint64_t others = other_processes_had_ns(span, ran, shared, now), took = (uint64_t)(ran->to - ran->from);
    uint64_t added = (uint64_t)busy_intervals_lack(busy, ran->from, ran->to);
    uint64_t fresh = (uint64_t)busy_intervals_add(busy, ran->from - stamp, ran->to + stamp);
    return (struct share){.ran = *ran,
                          .took = took - others,
                          .fresh = fresh - (others < fresh ? others : fresh),
                          .stamps = fresh > added ? fresh - added : 0,
                          .by_itself = added >= took,
                          .follows = follows};
}

/* Where the launch lies in its own time slice. A run of work begins with one if it had to wait for others: the card
 * also turns to them while all of the process waits for an event. */
static void look_at_slice(int64_t *slice_from, const struct share *share, struct shared_room *room) {
    if (!share->follows || room->before_ns > SHARED_COST_NEAR_NS)
        *slice_from = room->before_ns > SHARED_COST_NEAR_NS ? share->ran.from : INT64_MIN / 2;
    int64_t into = share->ran.from - *slice_from;
    room->in_slice = share->ran.to - *slice_from <= SHARED_COST_SLICE_NS;
    room->into_ns = into >= 0 && into < SHARED_COST_SLICE_NS ? (uint64_t)into : UINT64_MAX;
}

/* How long the launch waited before it began, while nothing else of its process ran that was measured. */
static uint64_t before_ns(const struct timing_span *span, const struct share *share) {
    int64_t from = share->ran.from, since = (int64_t)span->facts.launched_at + span->context_meter->clock.offset_ns;
    if (!share->ran.waited || (share->follows && span->behind != BEHIND_EVENT))
        return 0;
    if (share->follows && since < span->meter->settled_to)
        since = span->meter->settled_to;
    return since < from ? (uint64_t)busy_intervals_lack(&span->context_meter->busy, since, from) : 0;
}

/* Beside other containers that have work. */
static uint32_t divided_beside(const struct timing_span *span, const struct vcuda_limits_view *view,
                               const struct share *share, uint32_t divided, uint64_t now) {
    static struct shared_room rooms[VCUDA_MAX_CARDS];
    static int64_t slice_from[VCUDA_MAX_CARDS];
    struct shared_room *room = &rooms[span->context_meter->card];
    room->part_q16 = view->card[span->context_meter->card].others_part_q16;
    room->before_ns = before_ns(span, share);
    room->by_itself = share->by_itself;
    look_at_slice(&slice_from[span->context_meter->card], share, room);
    room->most_q8 = sharers_peak(view, span->context_meter->card, now);
    return shared_cost_divisor(span->cost, share->took, share->follows, share->ran.waited, divided, room);
}

/* Charge what is new of a measured launch's interval, which teaches what launches of its kind cost. */
static uint64_t charge_measured(struct timing_span *span, const struct vcuda_limits_view *view,
                                const struct share *share, uint64_t now) {
    struct stream_meter *meter = span->meter;
    const int card = span->context_meter->card;
    const struct gpu_interval *ran = &share->ran;
    uint32_t gain = view->card[card].gain_q8;
    uint64_t known = alone_cost_ns(span->cost);
    bool alone = has_turns(card), is_crossed = is_crossed_work(span, view, now);
    uint32_t divided = divisor_of(view, card, now);
    if (share->by_itself && !is_crossed)
        learn_wait(span, ran);
    uint64_t met = is_crossed ? crossed_work_met_ns(span, view, ran, known, share->fresh, now) : 0;
    if (known && is_crossed)
        divided = crossed_work_stretch_q8(share->took, known, alone);
    else if (divided > 256 && !alone && !bucket_is_silent(view, now))
        divided = divided_beside(span, view, share, divided, now);
    else if (known && !alone)
        divided = sharers_during(view, card, now, share->took, known);
    uint64_t steady = divided > 256 ? shared_cost_steady_ns(span->cost) : 0;
    if (!bucket_is_silent(view, now) && (share->by_itself || !known || !is_crossed))
        alone_cost_ran(span->cost, steady ? steady : bucket_used(share->took, divided, 256), now);
    /* It is not divided by how long it took: that may be the container's own other streams', charged for that. */
    uint32_t divisor = known && is_crossed ? 256 : divided;
    uint64_t fits = enter(span, ran->to, (int64_t)share->fresh, divisor, now), own = share->fresh - met;
    other_processes_told(span, ran->from, ran->to);
    uint64_t used = bucket_used(fits < own ? fits : own, divisor, gain);
    meter->settled_to = ran->to;
    uint64_t took = bucket_used(share->took, divided, gain);
    uint64_t added = bucket_used(own, divisor, gain);
    know_busy(span->meter, ran->from, ran->to, sharers_peak(view, card, now));
    meter->run_from = ran->to; /* it is judged by itself; another run begins */
    meter->lost_count = false;
    uint64_t teaches = added > share->stamps ? added - share->stamps : 0;
    account_error_measured(span->cost, teaches);
    cost_measured(span->cost, took, teaches);
    stream_meter_corrected(meter, span->facts.expected_ns, took);
    bucket_note_longest(&vcuda_usage()->card[card], took);
    return used;
}

/* Neither where classes wait for one another nor where the host says nothing of others. What its thread's calls took
 * longer than they do may be in what it seems to take. */
static void look_for_stall(const struct timing_span *span, const struct share *share,
                           const struct vcuda_limits_view *view, uint64_t now) {
    int card = span->context_meter->card;
    if (meter_is_classed(card) || bucket_is_silent(view, now))
        return;
    uint64_t slow = span->facts.slow_ns, took = share->took > slow ? share->took - slow : 0;
    stall_measured(&vcuda_usage()->card[card], span->cost, took, bucket_sharers(view, card, now) > 256, now);
}

uint64_t span_charge(struct timing_span *span, const struct vcuda_limits_view *view, bool ended, uint64_t now) {
    struct gpu_interval ran;
    if (!span->alone)
        return charge_tallied(span, view, ended, now);
    __atomic_store_n(&span->meter->clock.waits, false, __ATOMIC_RELAXED); /* what its stream waited for is over */
    if (!ended || !read_events(span, &ran))
        return charge_tallied(span, view, false, now);
    int card = span->context_meter->card;
    bool shared = meter_is_classed(card) || sharers_now(view, card, now) > 256;
    struct share share = share_of(span, &ran, shared, now);
    bool beside = timing_span_is_beside(span->meter);
    if (share.by_itself && !beside)
        look_for_stall(span, &share, view, now);
    meter_window.unsure |= beside || cost_is_unsure(span->cost);
    if (span->early && beside)
        return charge_as_paid(span, view, ran.to, now);
    return charge_measured(span, view, &share, now);
}
