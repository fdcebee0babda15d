#include "cuda/other_processes.h"
#include "attachment.h"
#include "cuda/recent_work.h"
#include "cuda/shared_cost.h"
#include "timeline.h"
#include "interposer.h"
#include "slots.h"

/* Until then no further switch is allowed for to processes that have published nothing. */
static int64_t allowed_until[VCUDA_MAX_CARDS];
static struct recent_entry last[VCUDA_MAX_CARDS];
static struct recent_copy copies[VCUDA_MAX_CARDS]; /* settling thread only */

static uint32_t own_slot(void) {
    return (uint32_t)(vcuda_slot() - vcuda_usage()->slot);
}

/* Other processes' work between these card times, as intervals of the host's clock. */
static unsigned work_of_others(const struct context_meter *context_meter, int64_t from, int64_t to,
                               struct busy_interval found[RECENT_WORK_COPIED]) {
    int card = context_meter->card;
    int64_t offset = context_meter->clock.offset_ns;
    recent_work_copy(&copies[card], &vcuda_usage()->recent[card]);
    return recent_work_of_others(&copies[card], own_slot(), from - offset, to - offset, found);
}

/* How much of the time from `from` to `to` other processes had by their own account, plus the card's switches to them
 * and back. Time in which this context had other work does not count, unless the launch itself is `entered` into the
 * context's busy intervals and hides that. */
static uint64_t published_ns(const struct context_meter *context_meter, int64_t from, int64_t to, bool entered) {
    int64_t offset = context_meter->clock.offset_ns, sum = 0;
    struct busy_interval found[RECENT_WORK_COPIED];
    unsigned turns = (unsigned)((to - from) / SHARED_COST_TURN_NS) + 1;
    unsigned count = work_of_others(context_meter, from, to, found);
    for (unsigned i = 0; i < count; i++)
        sum += entered ? found[i].to - found[i].from
                       : busy_intervals_lack(&context_meter->busy, found[i].from + offset, found[i].to + offset);
    return (uint64_t)(sum + 2 * SHARED_COST_SWITCH_MOST_NS * (count < turns ? count : turns));
}

/* Launches that are not measured are published as one piece at their end, though their process may have made them one
 * by one: what the card turned for may seem to have run so much later. */
#define PUBLISHED_LATE_NS 500000

static uint64_t explained_ns(const struct context_meter *context_meter, const struct other_wait *wait) {
    struct busy_interval found[RECENT_WORK_COPIED];
    uint64_t had = published_ns(context_meter, wait->from, wait->to, true);
    if (!had && work_of_others(context_meter, wait->to, wait->to + PUBLISHED_LATE_NS, found))
        had = 2 * SHARED_COST_SWITCH_MOST_NS;
    return had;
}

/* The part of a wait that other processes do not explain, as far as the page's timeline has room for it there. */
static uint64_t lacked(struct context_meter *context_meter, const struct other_wait *wait) {
    uint64_t had = explained_ns(context_meter, wait), ns = wait->ns > had ? wait->ns - had : 0;
    int64_t offset = context_meter->clock.offset_ns, from = wait->from - offset, to = wait->to - offset;
    if (!ns)
        return 0;
    /* Others may have been charged for it a time slice later, by what their streams surely worked (known_busy.h). */
    struct timeline_work work = {from, to - (int64_t)ns, to, to + SHARED_COST_TURN_NS};
    ns = (uint64_t)timeline_add(&vcuda_usage()->timeline[context_meter->card], &work, 256);
    if (__atomic_load_n(&wait->cost->key, __ATOMIC_RELAXED) == wait->key)
        cost_measured_more(wait->cost, ns);
    return ns;
}

uint64_t other_processes_lacked_ns(struct context_meter *context_meter, uint64_t now) {
    struct other_waits *waits = &context_meter->waits;
    uint64_t sum = 0;
    if (waits->first != waits->end)
        recent_work_copy(&copies[context_meter->card], &vcuda_usage()->recent[context_meter->card]);
    while (waits->first != waits->end && now >= waits->wait[waits->first % OTHER_WAITS].found_at + OTHERS_SETTLE_NS)
        sum += lacked(context_meter, &waits->wait[waits->first++ % OTHER_WAITS]);
    return sum;
}

/* What the launch waited for other processes, by what launches of its kind take that did not wait. It is compared later
 * with what they did. False: that is not known of the kind. */
static bool known_wait(struct timing_span *span, const struct gpu_interval *ran, unsigned busy, uint64_t now,
                       uint64_t *waited_ns) {
    struct other_waits *waits = &span->context_meter->waits;
    uint64_t took = (uint64_t)(ran->to - ran->from);
    bool follows = ran->from <= span->meter->settled_to + TIMING_SPAN_FOLLOWS_NS;
    if (span_plan_varies(span->cost) || cost_seen(span->cost) <= COST_FIRST || waits->end - waits->first == OTHER_WAITS)
        return false;
    uint64_t own = shared_cost_own_ns(span->cost, took, follows, false, 256 * busy);
    *waited_ns = took - own;
    if (own && own < took)
        waits->wait[waits->end++ % OTHER_WAITS] =
            (struct other_wait){ran->from, ran->to, took - own, now, span->cost->key, span->cost};
    return own;
}

uint64_t other_processes_had_ns(struct timing_span *span, const struct gpu_interval *ran, bool shared, uint64_t now) {
    uint64_t took = (uint64_t)(ran->to - ran->from), waited;
    if (!vcuda_slot() || slots_high(vcuda_usage()) < 2 || shared)
        return 0;
    uint64_t published = published_ns(span->context_meter, ran->from, ran->to, false);
    unsigned busy = slots_busy(vcuda_usage(), span->context_meter->card);
    if ((published || busy > 1) && known_wait(span, ran, busy > 1 ? busy : 2, now, &waited))
        return waited;
    return published < took ? published : took;
}

int64_t other_processes_switches_ns(const struct context_meter *context_meter, int64_t from, int64_t to) {
    struct busy_interval found[RECENT_WORK_COPIED];
    if (!vcuda_slot() || slots_high(vcuda_usage()) < 2)
        return 0;
    unsigned count = work_of_others(context_meter, from, to, found);
    if (!count && from >= allowed_until[context_meter->card] && slots_busy(vcuda_usage(), context_meter->card) > 1) {
        allowed_until[context_meter->card] = from + SHARED_COST_TURN_NS;
        count = 1; /* which has published nothing yet: once in a time slice */
    }
    return (int64_t)(2 * count) * SHARED_COST_SWITCH_MOST_NS;
}

void other_processes_told(const struct timing_span *span, int64_t from, int64_t to) {
    int card = span->context_meter->card;
    int64_t offset = span->context_meter->clock.offset_ns;
    if (vcuda_slot())
        recent_work_add(&vcuda_usage()->recent[card], &last[card], own_slot(), from - offset, to - offset);
}
