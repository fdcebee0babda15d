#include "cuda/credit.h"
#include "token_bucket.h"

#define ROOM_NAP_NS 250000u
#define STUCK_MOST_NS 20000000u /* it may take longer than it paid for */

static uint64_t longest(const struct credit *a) {
    return __atomic_load_n(&a->usage->longest_ns, __ATOMIC_RELAXED);
}

uint64_t credit_room_ns(const struct credit *a) {
    uint64_t most =
        bucket_ahead(longest(a)) + a->gated_ns + 2 * (a->stuck_ns < STUCK_MOST_NS ? a->stuck_ns : STUCK_MOST_NS);
    if (a->ahead_ns <= most)
        return 0;
    return a->ahead_ns - most > ROOM_NAP_NS ? a->ahead_ns - most : ROOM_NAP_NS;
}

/* For as long as the whole queue takes five times, in the turns of those that share the card. */
bool credit_ahead_is_stuck(const struct credit *a) {
    uint64_t patience = 5 * bucket_ahead(longest(a)) * bucket_sharers(a->view, a->card, a->now) / 256;
    return a->waited_ns > patience && a->now > a->moved_at + patience;
}

/* How long until the last window has room for more; 0: now. Work of other processes that is not measured yet is not
 * seen: it is some milliseconds. Where others are at work on the card, what credit there is may be what they kept this
 * container from having, and is no pause's. A protected container among best-effort ones, which wait for it, shares
 * with nobody. */
static bool is_shared(const struct credit *a) {
    bool yielded_to = a->view->card[a->card].mode & VCUDA_MODE_PROTECTED && bucket_is_granted(a->view, a->card, a->now);
    return !yielded_to && bucket_sharers(a->view, a->card, a->now) > 256;
}

static uint64_t window_full_ns(const struct credit *a, uint32_t share) {
    uint64_t used = __atomic_load_n(&a->usage->busy_ns, __ATOMIC_RELAXED) + a->ahead_ns;
    uint64_t full = window_cap_wait_ns(a->cap, a->view->card[a->card].window_ns, share, used, a->now);
    return is_shared(a) ? 0 : full;
}

/* What a pause may have saved up. More than the limits' burst only if the window keeps it from coming on top of what
 * was used before the pause, and if nobody else waits for the card. */
static uint64_t burst_ns(const struct credit *a, const struct vcuda_card_limits *limits, uint32_t share) {
    if (is_shared(a) || !window_cap_is_steady(a->cap, limits->window_ns, a->now))
        return bucket_burst(limits, share);
    return bucket_window_burst(limits, share);
}

uint64_t credit_take_ns(const struct credit *a, uint64_t ns, uint64_t *taken_ns) {
    const struct vcuda_card_limits *limits = &a->view->card[a->card];
    uint32_t share = bucket_share(a->view, a->card, a->now);
    uint64_t full = window_full_ns(a, share);
    int64_t credit = bucket_refill(a->usage, limits, share, burst_ns(a, limits, share), a->now);
    uint64_t slice = bucket_slice(share);
    uint64_t debt = bucket_debt(limits->debt_ns, longest(a));
    int64_t floor = -(int64_t)bucket_seniority(a->waited_ns, share, debt);
    if (share >= BUCKET_WHOLE_Q8) /* the card itself is the limit */
        floor = INT64_MIN;
    else if (full)
        return full;
    *taken_ns = slice < ns ? ns : slice;
    if (bucket_take(a->usage, *taken_ns, floor))
        return 0;
    return bucket_wall((uint64_t)(credit < floor ? floor - credit : 0) + 1, share);
}

bool credit_is_overdue(const struct credit *a) {
    uint64_t debt = bucket_debt(a->view->card[a->card].debt_ns, longest(a));
    return a->waited_ns > bucket_guard(debt, bucket_share(a->view, a->card, a->now));
}
