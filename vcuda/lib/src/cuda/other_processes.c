#include "cuda/other_processes.h"
#include "attachment.h"
#include "cuda/recent_work.h"
#include "interposer.h"
#include "slots.h"

/* What a card takes to turn from one process to another, at most: two that always have work get 84 to 94 % of an H100
 * in turns of 2.4 ms (docs/real-card.md). */
#define SWITCH_MOST_NS 150000

static struct recent_entry last[VCUDA_MAX_CARDS];

static uint32_t own_slot(void) {
    return (uint32_t)(vcuda_slot() - vcuda_usage()->slot);
}

static bool is_short(const struct timing_span *span) {
    return !span_plan_is_long(span->cost) && !span_plan_varies(span->cost) && cost_seen(span->cost) > COST_FIRST;
}

uint64_t other_processes_had_ns(const struct timing_span *span, const struct gpu_interval *ran) {
    const struct context_meter *context_meter = span->context_meter;
    int64_t offset = context_meter->clock.offset_ns, sum = 0;
    struct busy_interval found[VCUDA_RECENT_WORK_ENTRIES];
    if (!vcuda_slot() || slots_high(vcuda_usage()) < 2 || is_short(span))
        return 0;
    unsigned count = recent_work_of_others(&vcuda_usage()->recent[context_meter->card], own_slot(), ran->from - offset,
                                           ran->to - offset, found);
    for (unsigned i = 0; i < count; i++)
        sum += busy_intervals_lack(&context_meter->busy, found[i].from + offset, found[i].to + offset);
    return (uint64_t)sum;
}

int64_t other_processes_switches_ns(const struct context_meter *context_meter, int64_t from, int64_t to) {
    int64_t offset = context_meter->clock.offset_ns;
    struct busy_interval found[VCUDA_RECENT_WORK_ENTRIES];
    if (!vcuda_slot() || slots_high(vcuda_usage()) < 2)
        return 0;
    unsigned count = recent_work_of_others(&vcuda_usage()->recent[context_meter->card], own_slot(), from - offset,
                                           to - offset, found);
    if (!count && slots_busy(vcuda_usage(), context_meter->card) > 1)
        count = 1; /* which has not told yet */
    return (int64_t)(2 * count) * SWITCH_MOST_NS;
}

void other_processes_told(const struct timing_span *span, int64_t from, int64_t to) {
    int card = span->context_meter->card;
    int64_t offset = span->context_meter->clock.offset_ns;
    if (vcuda_slot())
        recent_work_add(&vcuda_usage()->recent[card], &last[card], own_slot(), from - offset, to - offset);
}
