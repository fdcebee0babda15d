#include "cuda/span_hold.h"
#include "interposer.h"
#include "page.h"

#include <sched.h>

#define HOLD_MOST_NS 40000u /* and what a host function takes */

static struct holding_budget budget;
static bool no_more;

/* Neither where a host function would end a capture, nor where others make way for this process's work or it for
 * theirs. */
bool span_hold_wanted(const struct stream_meter *meter, const struct cost *cost, uint64_t now) {
    uint32_t classed =
        __atomic_load_n(&meter_gated, __ATOMIC_RELAXED) | __atomic_load_n(&meter_tells, __ATOMIC_RELAXED);
    return !(classed >> meter->card & 1) && !__atomic_load_n(&meter_captures, __ATOMIC_SEQ_CST) &&
           !__atomic_load_n(&no_more, __ATOMIC_RELAXED) && holding_wanted(&budget, cost, now);
}

/* In a thread of the driver's. A launch call that waits for its stream goes on soon. */
static void wait_for_end(void *data) {
    struct timing_span *span = data;
    uint64_t now = vcuda_now_ns(), until = now + HOLD_MOST_NS;
    while (!__atomic_load_n(&span->facts.ended_at, __ATOMIC_ACQUIRE) && now < until) {
        sched_yield();
        now = vcuda_now_ns();
    }
    __atomic_store_n(&span->facts.held_until, vcuda_now_ns(), __ATOMIC_RELEASE);
}

bool span_hold(struct timing_span *span) {
    return real.cuLaunchHostFunc(span->meter->stream, (void *)wait_for_end, span) == CUDA_SUCCESS;
}

bool span_hold_succeeded(const struct timing_span *span) {
    const struct span_facts *facts = &span->facts;
    uint64_t until = __atomic_load_n(&facts->held_until, __ATOMIC_ACQUIRE);
    holding_took(&budget, until - (facts->launched_at - facts->lead_ns));
    return gpu_time_is_exact(facts);
}

void span_hold_no_more(void) {
    __atomic_store_n(&no_more, true, __ATOMIC_RELAXED);
}
