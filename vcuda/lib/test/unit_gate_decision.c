/* When a card's gate is closed: each check prints a line if it fails; the program's answer is how many did. */
#include "decision.h"

#include "check.h"

#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)
#define BEGIN (100 * SECOND)

enum { FORTY = 40 * 256 };

static struct decision_tenant begun(void) {
    struct decision_tenant tenant;
    decision_begin(&tenant, FORTY, BEGIN);
    return tenant;
}

static bool wants(const struct decision_tenant *tenant, uint64_t now) {
    return decision_until(tenant, now) > now;
}

static void observe(struct decision_tenant *tenant, bool pending, bool closed, uint64_t others_ns, uint64_t now) {
    struct decision_card card = {.closed = closed, .pending = pending, .others_ns = others_ns};
    decision_observe(tenant, pending, &card, now);
}

static void pending_work_closes_the_gate_for_a_bounded_time(void) {
    struct decision_tenant tenant = begun();
    CHECK(!wants(&tenant, BEGIN));
    observe(&tenant, true, false, 0, BEGIN + MS);
    CHECK(decision_until(&tenant, BEGIN + MS) == BEGIN + MS + DECISION_DEADLINE_NS);
    CHECK(DECISION_DEADLINE_NS <= 100 * MS, "who dies leaves no gate closed for longer");
    observe(&tenant, false, true, 0, BEGIN + 2 * MS);
    CHECK(!wants(&tenant, BEGIN + 2 * MS + DECISION_HOLD_NS));
}

/* Works for a millisecond, so often, and pauses for so long each time. */
static uint64_t pauses(struct decision_tenant *tenant, unsigned times, uint64_t pause, uint64_t now) {
    for (unsigned i = 0; i < times; i++) {
        observe(tenant, true, true, 0, now += pause);
        observe(tenant, false, true, 0, now += MS);
    }
    return now;
}

static bool is_held_for(const struct decision_tenant *tenant, uint64_t least, uint64_t most, uint64_t now) {
    return wants(tenant, now + least - 1) && !wants(tenant, now + most);
}

static void a_gate_is_held_over_short_pauses_once_they_are_the_rule(void) {
    struct decision_tenant tenant = begun();
    uint64_t now = pauses(&tenant, 100, MS, BEGIN);
    CHECK(is_held_for(&tenant, DECISION_HOLD_NS, DECISION_HOLD_NS, now));
    now = pauses(&tenant, 100, SECOND, now);
    CHECK(!wants(&tenant, now));
}

/* One request in five follows the one before it at once. */
static void it_is_held_for_as_long_as_that_takes_if_work_sometimes_follows_at_once(void) {
    struct decision_tenant tenant = begun();
    uint64_t now = BEGIN;
    for (int i = 0; i < 40; i++)
        now = pauses(&tenant, 4, 20 * MS, pauses(&tenant, 1, MS / 20, now));
    CHECK(is_held_for(&tenant, MS / 10, MS / 3, now));
    for (int i = 0; i < 40; i++)
        now = pauses(&tenant, 4, 20 * MS, pauses(&tenant, 1, MS / 100, now));
    CHECK(is_held_for(&tenant, MS / 10, MS / 9, now), "no less than it takes to see it");
    now = pauses(&tenant, 60, 20 * MS, now);
    CHECK(!wants(&tenant, now), "and not if none does");
}

/* Says for ever that work is pending: percent of the time for which the gate is closed. `beside` percent of the closed
 * time are others' work that runs out. */
static unsigned closed_percent(uint64_t beside, unsigned seconds) {
    struct decision_tenant tenant = begun();
    uint64_t now = BEGIN, closed_ns = 0;
    for (unsigned i = 0; i < seconds * 1000; i++) {
        bool closed = wants(&tenant, now);
        now += MS;
        closed_ns += closed ? MS : 0;
        observe(&tenant, true, closed, closed ? MS * beside / 100 : 0, now);
    }
    return (unsigned)(closed_ns * 100 / (seconds * SECOND));
}

static void a_tenant_that_lies_closes_the_gate_for_its_share_and_no_longer(void) {
    unsigned percent = closed_percent(0, 60);
    CHECK(percent >= 40 && percent <= 46, "%u", percent);
}

/* Work for a tenth of a millisecond, again and again within the longest hold: its pauses would keep the gate closed for
 * ever, and cost nothing. */
static void a_tenant_that_lies_with_its_pauses_closes_the_gate_for_twice_its_share_at_most(void) {
    struct decision_tenant tenant = begun();
    uint64_t now = BEGIN, closed_ns = 0, seconds = 60;
    for (unsigned i = 0; i < seconds * 10000; i++) {
        bool closed = wants(&tenant, now);
        now += MS / 10;
        closed_ns += closed ? MS / 10 : 0;
        observe(&tenant, i % 19 == 0, closed, 0, now);
    }
    unsigned percent = (unsigned)(closed_ns * 100 / (seconds * SECOND));
    CHECK(percent >= 40 && percent <= 50, "%u", percent);
}

static void a_tenant_that_waits_for_others_work_is_not_charged_for_it(void) {
    unsigned percent = closed_percent(60, 60);
    CHECK(percent >= 99, "%u", percent);
}

static void two_that_are_pending_share_the_charge(void) {
    struct decision_tenant alone = begun(), one_of_two = begun();
    struct decision_card single = {.closed = true, .pending = 1}, both = {.closed = true, .pending = 2};
    for (uint64_t now = BEGIN; now < BEGIN + 300 * MS; now += MS) {
        decision_observe(&alone, true, &single, now);
        decision_observe(&one_of_two, true, &both, now);
    }
    CHECK(one_of_two.credit_ns > alone.credit_ns);
}

static void who_rings_without_end_is_looked_at_so_often_and_no_more(void) {
    struct decision_budget budget = {0};
    uint64_t now = BEGIN;
    unsigned looks = 0;
    CHECK(decision_pause_ns(&budget, now) == 0);
    for (; now < BEGIN + 10 * SECOND; looks++)
        now += decision_pause_ns(&budget, now) + 20000;
    CHECK(looks <= 7500, "%u", looks);
    now += SECOND;
    CHECK(decision_pause_ns(&budget, now) == 0);
    CHECK(DECISION_PAUSE_NS < 2 * MS, "a gate is closed within 2 ms all the same");
}

int main(void) {
    pending_work_closes_the_gate_for_a_bounded_time();
    a_gate_is_held_over_short_pauses_once_they_are_the_rule();
    it_is_held_for_as_long_as_that_takes_if_work_sometimes_follows_at_once();
    a_tenant_that_lies_closes_the_gate_for_its_share_and_no_longer();
    a_tenant_that_lies_with_its_pauses_closes_the_gate_for_twice_its_share_at_most();
    a_tenant_that_waits_for_others_work_is_not_charged_for_it();
    two_that_are_pending_share_the_charge();
    who_rings_without_end_is_looked_at_so_often_and_no_more();
    return checked();
}
