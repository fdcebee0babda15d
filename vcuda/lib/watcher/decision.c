#include "decision.h"

#define WHOLE_Q8 (100 * 256)
#define MORE_THAN_SHARE 11 / 10 /* work is pending a little longer than it runs */
#define PAUSES 16               /* averages are over about so many */
#define MOSTLY_Q8 128
#define SOMETIMES_Q8 16
#define SOON_NS (DECISION_HOLD_NS / 4)
#define SOON_TIMES 3
#define SOON_FIRST_Q8 64 /* until it has shown what it does */
#define SOON_FIRST_NS 100000
#define HOLD_LEAST_NS UINT64_C(100000)

static int64_t income(const struct decision_tenant *tenant, uint64_t ns) {
    uint32_t share = tenant->cores_q8 > WHOLE_Q8 ? WHOLE_Q8 : tenant->cores_q8;
    uint64_t within = ns > DECISION_WINDOW_NS ? DECISION_WINDOW_NS : ns;
    return (int64_t)(within * share / WHOLE_Q8) * MORE_THAN_SHARE;
}

void decision_begin(struct decision_tenant *tenant, uint32_t cores_q8, uint64_t now) {
    *tenant = (struct decision_tenant){
        .cores_q8 = cores_q8, .seen_at = now, .soon_q8 = SOON_FIRST_Q8, .soon_ns = SOON_FIRST_NS};
    tenant->credit_ns = tenant->hold_ns = income(tenant, DECISION_WINDOW_NS);
}

/* Is the credit spent, after this change? Until it has some again. */
static bool is_spent(int64_t *credit_ns, bool was, int64_t change_ns, int64_t most_ns) {
    *credit_ns = *credit_ns + change_ns > most_ns ? most_ns : *credit_ns + change_ns;
    return *credit_ns <= 0 || (was && *credit_ns < most_ns / 8);
}

static uint64_t hold_ns(const struct decision_tenant *tenant);

/* For how long of the time until now it has held the gate in a pause. */
static int64_t held_ns(const struct decision_tenant *tenant, uint64_t now) {
    uint64_t until = tenant->quiet_since + hold_ns(tenant), to = now < until ? now : until;
    uint64_t from = tenant->seen_at > tenant->quiet_since ? tenant->seen_at : tenant->quiet_since;
    return !tenant->pending && tenant->quiet_since && to > from ? (int64_t)(to - from) : 0;
}

static void account(struct decision_tenant *tenant, const struct decision_card *card, uint64_t now) {
    uint64_t passed = now > tenant->seen_at ? now - tenant->seen_at : 0;
    int64_t own = (int64_t)passed - (int64_t)card->others_ns; /* what ran out is told of when it has */
    int64_t most = income(tenant, DECISION_WINDOW_NS), change = income(tenant, passed);
    int64_t held = card->closed ? held_ns(tenant, now) : 0;
    tenant->has_held = is_spent(&tenant->hold_ns, tenant->has_held, change - held, most);
    if (card->closed && tenant->pending && !tenant->is_spent)
        change -= own / (int64_t)(card->pending ? card->pending : 1);
    tenant->is_spent = is_spent(&tenant->credit_ns, tenant->is_spent, change, most);
    tenant->seen_at = now;
}

static int32_t averaged(int32_t q8, bool is_so) {
    return q8 + ((is_so ? 256 : 0) - q8) / PAUSES;
}

static void note_pause(struct decision_tenant *tenant, uint64_t ns) {
    tenant->returns_q8 = averaged(tenant->returns_q8, ns < DECISION_HOLD_NS);
    tenant->soon_q8 = averaged(tenant->soon_q8, ns < SOON_NS);
    if (ns < SOON_NS)
        tenant->soon_ns += ((int64_t)ns - tenant->soon_ns) / PAUSES;
}

static uint64_t hold_ns(const struct decision_tenant *tenant) {
    uint64_t ns = (uint64_t)tenant->soon_ns * SOON_TIMES;
    if (tenant->has_held)
        return 0;
    if (tenant->returns_q8 > MOSTLY_Q8)
        return DECISION_HOLD_NS;
    if (tenant->soon_q8 < SOMETIMES_Q8)
        return 0;
    return ns < HOLD_LEAST_NS ? HOLD_LEAST_NS : ns;
}

void decision_observe(struct decision_tenant *tenant, bool pending, const struct decision_card *card, uint64_t now) {
    account(tenant, card, now);
    if (pending && !tenant->pending && tenant->quiet_since)
        note_pause(tenant, now - tenant->quiet_since);
    if (!pending && tenant->pending)
        tenant->quiet_since = now;
    tenant->pending = pending;
}

uint64_t decision_until(const struct decision_tenant *tenant, uint64_t now) {
    if (tenant->is_spent)
        return 0;
    if (tenant->pending)
        return now + DECISION_DEADLINE_NS;
    return tenant->quiet_since ? tenant->quiet_since + hold_ns(tenant) : 0;
}

uint64_t decision_pause_ns(struct decision_budget *budget, uint64_t now) {
    budget->left_ns += now > budget->at ? (int64_t)(now - budget->at) : 0;
    if (!budget->at || budget->left_ns > DECISION_LOOKS_MOST_NS)
        budget->left_ns = DECISION_LOOKS_MOST_NS;
    budget->at = now;
    if (budget->left_ns < -DECISION_LOOK_COST_NS)
        budget->left_ns = -DECISION_LOOK_COST_NS;
    budget->left_ns -= DECISION_LOOK_COST_NS;
    return budget->left_ns < 0 ? DECISION_PAUSE_NS : 0;
}
