#include "cuda/crossed_work.h"

#include "cuda/alone_cost.h"
#include "cuda/gate_passage.h"
#include "cuda/gate_view.h"
#include "cuda/stream_meter.h"
#include "token_bucket.h"

#define STOPPED_NS 3000u /* by so much a launch may seem shorter than it was, for a thread's short stops */

static bool is_protected(const struct vcuda_limits_view *view, int card) {
    return view->card[card].mode & VCUDA_MODE_PROTECTED;
}

bool is_crossed_work(const struct timing_span *span, const struct vcuda_limits_view *view, uint64_t now) {
    int card = span->context_meter->card;
    if (__builtin_expect(!view->card[card].granted_q8, 1) || !bucket_is_granted(view, card, now))
        return false;
    uint64_t since = span->facts.launched_at;
    return is_protected(view, card) || gate_was_moved(card, since) || gate_others_ran(card, since);
}

/* Whether protected work follows other work of its stream is seen by the card's times: what is expected of a stream is
 * wrong as long as costs are. What does not may have waited for all that was in flight as it began. */
#define FOLLOWS_NS 50000

static bool follows_own(const struct timing_span *span, const struct gpu_interval *ran) {
    int64_t before = span->meter->settled_to;
    return before && ran->from <= before + FOLLOWS_NS;
}

/* Of the card's time, protected work that follows can have met best-effort work for half at most where the card runs
 * both by turns, since one passes a closed gate at a time; where kernels run out, for what best-effort containers are
 * sure of and use, since none passes for more: as late as it can, and then for long. What takes longer than that is
 * longer than is known, as a kernel is whose length its data decide. */
#define MET_ONE_IN 2
#define MET_MOST_NS 50000000

static uint64_t may_have_met(const struct vcuda_card_limits *limits, int card, uint64_t fresh, uint64_t more,
                             uint64_t now) {
    static struct {
        int64_t ns;
        uint64_t at;
    } budgets[VCUDA_MAX_CARDS];
    int64_t *left = &budgets[card].ns, met = (int64_t)more;
    const double beside = limits->beside_q8 / (100.0 * 256);
    const int64_t most = MET_MOST_NS + (int64_t)(beside * (double)limits->window_ns) / 2;
    int64_t by_turns = (int64_t)(fresh / MET_ONE_IN);
    int64_t passing = (int64_t)(beside * (double)(now - budgets[card].at));
    budgets[card].at = now;
    *left += by_turns > passing ? by_turns : passing;
    *left = *left < most ? *left : most;
    met = met < *left ? met : *left;
    *left -= met;
    return (uint64_t)met;
}

uint64_t crossed_work_met_ns(struct timing_span *span, const struct vcuda_limits_view *view,
                             const struct gpu_interval *ran, uint64_t known_ns, uint64_t fresh_ns, uint64_t now) {
    int card = span->context_meter->card;
    uint64_t took = (uint64_t)(ran->to - ran->from), more = known_ns && fresh_ns > known_ns ? fresh_ns - known_ns : 0;
    bool is_by_itself = fresh_ns >= took;
    if (is_by_itself)
        alone_cost_ran_crossed(span->cost, took + STOPPED_NS);
    if (!is_protected(view, card))
        return more;
    uint64_t met = follows_own(span, ran) ? may_have_met(&view->card[card], card, fresh_ns, more, now) : more;
    if (is_by_itself && known_ns)
        alone_cost_ran_mixed(span->cost, took, met == more, now);
    return met;
}

/* Where it truly takes longer than it did, that becomes known by an eighth at a time. */
#define MORE_IN 8
#define TURNS_MORE_IN 32
#define MOST_Q8 (1024 * 256)

uint32_t crossed_work_stretch_q8(uint64_t took_ns, uint64_t known_ns, bool takes_turns) {
    return bucket_stretch(took_ns, known_ns + known_ns / (takes_turns ? TURNS_MORE_IN : MORE_IN), MOST_Q8);
}
