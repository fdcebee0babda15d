#include "cuda/span_hold.h"
#include "cuda/launch_wait.h"
#include "interposer.h"
#include "page.h"

#include <sched.h>

#define HOLD_MOST_NS 40000u /* and what a host function takes */

static struct holding_budget budget;
static bool no_more;

bool span_hold_wanted(const struct cost *cost, uint64_t now) {
    return !__atomic_load_n(&no_more, __ATOMIC_RELAXED) && holding_wanted(&budget, cost, now);
}

/* In a thread of the driver's. A launch call that waits for its stream goes on soon. */
static void wait_for_end(void *data) {
    struct span_facts *facts = data;
    uint64_t now = vcuda_now_ns(), until = now + HOLD_MOST_NS;
    while (!__atomic_load_n(&facts->ended_at, __ATOMIC_ACQUIRE) && now < until) {
        sched_yield();
        now = vcuda_now_ns();
    }
    __atomic_store_n(&facts->held_until, vcuda_now_ns(), __ATOMIC_RELEASE);
}

bool span_hold(CUstream stream, struct span_facts *facts) {
    return real.cuLaunchHostFunc(stream, (void *)wait_for_end, facts) == CUDA_SUCCESS;
}

bool span_hold_succeeded(const struct span_facts *facts) {
    uint64_t until = __atomic_load_n(&facts->held_until, __ATOMIC_ACQUIRE);
    holding_took(&budget, until - (facts->launched_at - facts->lead_ns));
    return gpu_time_is_exact(facts);
}

void span_hold_no_more(void) {
    __atomic_store_n(&no_more, true, __ATOMIC_RELAXED);
}
