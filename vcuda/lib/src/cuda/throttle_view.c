#include "cuda/throttle_view.h"
#include "attachment.h"
#include "cuda/context_registry.h"
#include "cuda/timing_span.h"
#include "fork.h"

#include <errno.h>

__thread struct throttle_view throttle_view __attribute__((tls_model("initial-exec")));

void throttle_count(void) {
    struct current_context where;
    struct vcuda_usage *usage = vcuda_usage();
    if (throttle_view.uncounted && usage && context_current(&where) && where.card >= 0)
        __atomic_fetch_add(&usage->card[where.card].launches, throttle_view.uncounted, __ATOMIC_RELAXED);
    throttle_view.uncounted = 0;
}

static void look_at_classes(const struct vcuda_limits_view *view) {
    uint32_t gated = 0, tells = 0;
    throttle_view.limited = 0;
    for (uint32_t i = 0; i < view->card_count; i++) {
        uint32_t mode = view->card[i].mode, granted = view->card[i].granted_q8 != 0;
        throttle_view.limited |= (uint32_t)((mode & VCUDA_MODE_CORES_LIMITED) != 0) << i;
        gated |= (uint32_t)(granted && mode & VCUDA_MODE_BEST_EFFORT) << i;
        tells |= (uint32_t)(granted && mode & VCUDA_MODE_PROTECTED) << i;
    }
    throttle_view.gated = gated;
    __atomic_store_n(&meter_gated, gated, __ATOMIC_RELAXED);
    __atomic_store_n(&meter_tells, tells, __ATOMIC_RELAXED);
}

/* The words first: limits read after them are theirs, or newer. */
static void remember(const struct vcuda_page_view *page_view) {
    uint64_t first = __atomic_load_n(&page_view->seen[0], __ATOMIC_ACQUIRE);
    uint64_t second = __atomic_load_n(&page_view->seen[1], __ATOMIC_ACQUIRE);
    if (throttle_view.limits && throttle_view.seen[0] == first && throttle_view.seen[1] == second)
        return;
    look_at_classes(__atomic_load_n(&page_view->current, __ATOMIC_ACQUIRE));
    throttle_view.seen[0] = first;
    throttle_view.seen[1] = second;
    throttle_view.limits = page_view->limits;
}

/* A child of a fork has no pages yet. */
static void forget_in_child(void) {
    throttle_view = (struct throttle_view){0};
}

bool throttle_look(void) {
    const struct vcuda_page_view *page_view = __atomic_load_n(&vcuda_page_view, __ATOMIC_ACQUIRE);
    if (!page_view || !vcuda_limits())
        return false;
    int saved = errno;
    fork_forgets(forget_in_child);
    if (throttle_view.uncounted)
        throttle_count();
    remember(page_view);
    throttle_view.uncounted += !throttle_view.limited;
    errno = saved;
    return throttle_view.limited;
}
