#include "token_bucket.h"

#define SECOND_NS 1000000000u
#define DEBT_MOST_NS (2u * (uint64_t)SECOND_NS)
#define AHEAD_LEAST_NS 10000000u
/* No stamp is older than this for the arithmetic's sake: it brings more than any burst. */
#define REFILL_MOST_NS (1000u * (uint64_t)SECOND_NS)
#define REFILL_LEAST_NS 20000u

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static uint64_t most(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static bool is_fresh(const struct vcuda_limits_view *view, uint64_t now, uint64_t within) {
    return view->heartbeat_ns && (now <= view->heartbeat_ns || now - view->heartbeat_ns <= within);
}

bool bucket_is_granted(const struct vcuda_limits_view *view, int card, uint64_t now) {
    return view->card[card].granted_q8 && is_fresh(view, now, BUCKET_HEARTBEAT_FRESH_NS);
}

uint32_t bucket_share(const struct vcuda_limits_view *view, int card, uint64_t now) {
    const struct vcuda_card_limits *limits = &view->card[card];
    uint32_t share = limits->core_limit_q8;
    if (bucket_is_granted(view, card, now))
        share = limits->granted_q8;
    else if (view->flags & VCUDA_FLAG_ELASTIC && limits->core_ceiling_q8 > share && limits->co_active_q8 <= 256 &&
             is_fresh(view, now, BUCKET_HEARTBEAT_FRESH_NS))
        share = limits->core_ceiling_q8;
    return share < 1 ? 1 : share > BUCKET_WHOLE_Q8 ? BUCKET_WHOLE_Q8 : share;
}

uint32_t bucket_sharers(const struct vcuda_limits_view *view, int card, uint64_t now) {
    uint32_t sharers = view->card[card].co_active_q8;
    bool lost = view->heartbeat_ns && !is_fresh(view, now, BUCKET_HEARTBEAT_LOST_NS);
    return lost || sharers < 256 ? 256 : sharers;
}

bool bucket_is_silent(const struct vcuda_limits_view *view, uint64_t now) {
    return view->heartbeat_ns && !is_fresh(view, now, BUCKET_HEARTBEAT_FRESH_NS / 2);
}

uint32_t bucket_stretch(uint64_t elapsed_ns, uint64_t expected_ns, uint32_t most_q8) {
    uint64_t stretch = least(elapsed_ns, REFILL_MOST_NS) * 256 / (expected_ns ? expected_ns : 1);
    return (uint32_t)most(256, least(stretch, most_q8));
}

uint64_t bucket_income(uint64_t wall_ns, uint32_t share_q8) {
    return least(wall_ns, REFILL_MOST_NS) * share_q8 / BUCKET_WHOLE_Q8;
}

uint64_t bucket_wall(uint64_t credit_ns, uint32_t share_q8) {
    return (least(credit_ns, REFILL_MOST_NS) * BUCKET_WHOLE_Q8 + share_q8 - 1) / share_q8;
}

uint64_t bucket_burst(const struct vcuda_card_limits *limits, uint32_t share_q8) {
    return least(least(limits->burst_ns, REFILL_MOST_NS), bucket_income(limits->window_ns / 10, share_q8));
}

uint64_t bucket_window_burst(const struct vcuda_card_limits *limits, uint32_t share_q8) {
    return most(bucket_burst(limits, share_q8), bucket_income(limits->window_ns / 10 * 4, share_q8));
}

int64_t bucket_refilled(int64_t credit, uint64_t wall_ns, uint32_t share_q8, uint64_t burst_ns, uint64_t debt_ns) {
    int64_t floor = -(int64_t)least(debt_ns, REFILL_MOST_NS), cap = (int64_t)least(burst_ns, REFILL_MOST_NS);
    if (credit < floor)
        credit = floor;
    if (credit > cap)
        credit = cap;
    credit += (int64_t)bucket_income(wall_ns, share_q8);
    return credit < cap ? credit : cap;
}

uint64_t bucket_debt(uint64_t debt_ns, uint64_t longest_ns) {
    debt_ns = least(debt_ns, REFILL_MOST_NS);
    uint64_t long_enough = least(longest_ns, SECOND_NS * 2u) * 3 / 2;
    return most(debt_ns, least(long_enough, DEBT_MOST_NS));
}

uint64_t bucket_guard(uint64_t debt_ns, uint32_t share_q8) {
    return bucket_wall(2 * debt_ns, share_q8);
}

uint64_t bucket_slice(uint32_t share_q8) {
    return most(BUCKET_FIRST_GUESS_NS, bucket_income(1000000, share_q8));
}

uint64_t bucket_ahead(uint64_t longest_ns) {
    return most(AHEAD_LEAST_NS, 2 * least(longest_ns, DEBT_MOST_NS));
}

uint64_t bucket_seniority(uint64_t waited_ns, uint32_t share_q8, uint64_t debt_ns) {
    return least(bucket_income(waited_ns, share_q8), debt_ns) / 8;
}

uint64_t bucket_nap(uint64_t left_ns) {
    return least(most(left_ns, BUCKET_NAP_LEAST_NS), BUCKET_NAP_MOST_NS);
}

uint64_t bucket_used(uint64_t elapsed_ns, uint32_t sharers_q8, uint32_t gain_q8) {
    uint64_t divided = least(elapsed_ns, REFILL_MOST_NS) * 256 / (sharers_q8 < 256 ? 256 : sharers_q8);
    return divided * (gain_q8 ? gain_q8 : 256) / 256;
}

/* ---- the words of the usage page
 * ------------------------------------------------------------------------------------- */

static bool swap(int64_t *word, int64_t *old, int64_t new) {
    return __atomic_compare_exchange_n(word, old, new, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

/* What was queued before anybody knew how long it takes may be more than the limits' debt: as much is paid off as is
 * over before the guard's wait is. */
static uint64_t debt_of(const struct vcuda_card_usage *usage, const struct vcuda_card_limits *limits) {
    return bucket_debt(2 * least(limits->debt_ns, REFILL_MOST_NS / 2),
                       __atomic_load_n(&usage->longest_ns, __ATOMIC_RELAXED));
}

/* Who moves the stamp brings the credit for what lies between. A stamp of the future is no stamp of ours. */
int64_t bucket_refill(struct vcuda_card_usage *usage, const struct vcuda_card_limits *limits, uint32_t share_q8,
                      uint64_t burst_ns, uint64_t now) {
    uint64_t stamp = __atomic_load_n(&usage->refill_ns, __ATOMIC_RELAXED);
    int64_t credit = __atomic_load_n(&usage->credit_ns, __ATOMIC_RELAXED);
    if (stamp <= now && now - stamp < REFILL_LEAST_NS)
        return credit;
    if (!__atomic_compare_exchange_n(&usage->refill_ns, &stamp, now, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return __atomic_load_n(&usage->credit_ns, __ATOMIC_RELAXED);
    uint64_t wall = stamp && stamp < now ? now - stamp : 0;
    uint64_t debt = debt_of(usage, limits);
    int64_t new;
    do
        new = bucket_refilled(credit, wall, share_q8, burst_ns, debt);
    while (!swap(&usage->credit_ns, &credit, new));
    return new;
}

bool bucket_take(struct vcuda_card_usage *usage, uint64_t amount, int64_t floor) {
    int64_t credit = __atomic_load_n(&usage->credit_ns, __ATOMIC_RELAXED);
    do
        if (credit <= floor)
            return false;
    while (!swap(&usage->credit_ns, &credit, credit - (int64_t)amount));
    return true;
}

void bucket_force(struct vcuda_card_usage *usage, uint64_t amount) {
    __atomic_fetch_sub(&usage->credit_ns, (int64_t)amount, __ATOMIC_RELAXED);
}

void bucket_settle(struct vcuda_card_usage *usage, const struct vcuda_card_limits *limits, uint64_t used,
                   uint64_t paid) {
    __atomic_fetch_add(&usage->busy_ns, used, __ATOMIC_RELAXED);
    int64_t change = (int64_t)paid - (int64_t)used;
    if (!change)
        return;
    uint32_t share = limits->core_ceiling_q8 > limits->core_limit_q8 ? limits->core_ceiling_q8 : limits->core_limit_q8;
    int64_t floor = -(int64_t)debt_of(usage, limits), cap = (int64_t)bucket_burst(limits, share);
    int64_t credit = __atomic_load_n(&usage->credit_ns, __ATOMIC_RELAXED), new;
    do {
        /* What pays back an estimate may pass the burst no more than income may; debt it finds it does not deepen. */
        new = credit + change;
        if (change > 0 && new > cap)
            new = credit > cap ? credit : cap;
        if (change < 0 && new < floor)
            new = credit < floor ? credit : floor;
    } while (!swap(&usage->credit_ns, &credit, new));
    if (change < 0 && new > credit + change)
        __atomic_fetch_add(&usage->debt_cut_ns, (uint64_t)(new - credit - change), __ATOMIC_RELAXED);
}

/* Who moves the start takes the older half's part off; what others add meanwhile stays. */
void bucket_note_window(struct vcuda_card_usage *usage, uint64_t used, uint64_t now) {
    uint64_t start = __atomic_load_n(&usage->window_start_ns, __ATOMIC_RELAXED);
    uint64_t busy = __atomic_add_fetch(&usage->window_busy_ns, used, __ATOMIC_RELAXED);
    uint64_t age = start <= now ? now - start : UINT64_MAX;
    if (start && age < SECOND_NS)
        return;
    bool stale = !start || age >= BUCKET_WINDOW_MOST_NS;
    uint64_t begin = stale ? now - least(used, now) : start + age / 2;
    if (__atomic_compare_exchange_n(&usage->window_start_ns, &start, begin, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        __atomic_fetch_sub(&usage->window_busy_ns, stale ? busy - used : busy / 2, __ATOMIC_RELAXED);
}

void bucket_note_longest(struct vcuda_card_usage *usage, uint64_t ns) {
    uint64_t longest = __atomic_load_n(&usage->longest_ns, __ATOMIC_RELAXED);
    while (longest < ns &&
           !__atomic_compare_exchange_n(&usage->longest_ns, &longest, ns, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}
