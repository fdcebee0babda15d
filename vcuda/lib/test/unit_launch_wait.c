/* What held launches and the others together say of kernels and of the way to the card: each check prints a line if it
 * fails; the program's answer is how many did. */
#include "cuda/gpu_time.h"
#include "cuda/launch_wait.h"
#include "check.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)
#define NOW (1000 * MS)

static uint64_t known_ns(const struct cost *cost) {
    bool steady;
    return exact_ns(cost, &steady);
}

static bool is_steady(const struct cost *cost) {
    bool steady;
    exact_ns(cost, &steady);
    return steady;
}

static struct cost *kind(uintptr_t function, uint64_t ns) {
    struct cost *cost = cost_find(cost_key((const void *)(function << 12), 1));
    for (int i = 0; i < COST_FIRST; i++)
        cost_measured(cost, ns, ns);
    return cost;
}

/* Evenly from `least` to `most`, the same in every run. */
static uint64_t between(uint64_t least, uint64_t most) {
    static uint32_t dice = 1;
    dice = dice * 1664525 + 1013904223;
    return least + (dice >> 8) % (most - least + 1);
}

static void streams_are_held_for_a_small_part_of_the_time(void) {
    struct holding_budget budget = {0};
    const struct cost *cost = kind(1, 10 * US);
    uint64_t held = 0, took = 90 * US, begin = NOW, end = begin + 10000 * MS;
    for (uint64_t now = begin; now < end; now += 20 * US)
        if (holding_wanted(&budget, cost, now)) {
            exact_told(cost, between(5 * US, 15 * US)); /* so that it is long unknown */
            holding_took(&budget, took);
            held++;
        }
    uint64_t most = (end - begin) * HOLDING_PERMILLE / 1000 + 5 * MS;
    CHECK(held * took <= most && held * took >= most / 4, "%llu", (unsigned long long)held);
}

static void a_kind_is_held_until_it_is_known_and_seldom_then(void) {
    struct holding_budget budget = {0};
    const struct cost *steady = kind(2, 3 * US);
    unsigned first = 0, later = 0;
    for (uint64_t now = NOW; now < NOW + 10000 * MS; now += MS)
        if (holding_wanted(&budget, steady, now)) {
            exact_told(steady, 3 * US);
            *(now < NOW + 100 * MS ? &first : &later) += 1;
        }
    CHECK(first == 4 && later >= 8 && later <= 10, "%u %u", first, later);
    exact_told(steady, 2400 * US); /* another process had its turn in between */
    CHECK(known_ns(steady) == 3 * US && is_steady(steady));
    CHECK(!holding_wanted(&budget, kind(3, 200 * US), NOW + 20000 * MS)); /* its wait is a small part */
    const struct cost *unknown = cost_find(cost_key((const void *)0x4000, 1));
    CHECK(!holding_wanted(&budget, unknown, NOW + 20000 * MS)); /* its first launch may load it */
}

static void a_kind_that_never_tells_is_let_alone(void) {
    struct holding_budget budget = {0};
    const struct cost *blocking = kind(5, 5 * US);
    unsigned held = 0;
    for (uint64_t now = NOW; now < NOW + 20000 * MS; now += MS)
        held += holding_wanted(&budget, blocking, now);
    CHECK(held == 4 && known_ns(blocking) == 0, "%u", held);
}

static void an_average_is_known_once_it_is_sure(void) {
    struct holding_budget budget = {0};
    const struct cost *varied = kind(6, 10 * US), *split = kind(7, 30 * US);
    CHECK(holding_wanted(&budget, varied, NOW) && holding_wanted(&budget, split, NOW));
    for (int i = 0; i < 6; i++)
        exact_told(varied, 8 * US + (uint64_t)(i % 2) * 4 * US);
    CHECK(known_ns(varied) == 0);
    for (int i = 0; i < 1000; i++) {
        exact_told(varied, between(8 * US, 12 * US));
        exact_told(split, i % 2 ? 3 * US : 60 * US); /* two kernels behind one name: none of them is an average one */
    }
    CHECK(known_ns(varied) > 9900 && known_ns(varied) < 10100, "%llu", (unsigned long long)known_ns(varied));
    CHECK(known_ns(split) == 0 && !is_steady(varied));
}

static void how_long_launches_wait_is_learnt_from_known_kernels(void) {
    struct launch_wait wait = {0};
    for (int i = 0; i < 7; i++)
        launch_wait_told(&wait, 8 * US, 3 * US);
    CHECK(launch_wait_ns(&wait) == 0); /* too few */
    launch_wait_told(&wait, 8 * US, 3 * US);
    CHECK(launch_wait_ns(&wait) == 5 * US);
    for (int i = 0; i < 1000; i++) {
        launch_wait_told(&wait, (int64_t)between(9 * US, 11 * US), 3 * US); /* the host has become slower */
        launch_wait_told(&wait, 900 * MS, 3 * US);                          /* the thread had stood still */
    }
    CHECK(launch_wait_ns(&wait) > 6900 && launch_wait_ns(&wait) < 7100);
    for (int i = 0; i < 2000; i++)
        launch_wait_told(&wait, 2 * US, 3 * US); /* it waits no time at all */
    CHECK(launch_wait_ns(&wait) == 1);
}

static void what_is_known_is_charged(void) {
    struct card_clock clock = {0};
    struct span_facts facts = {
        .launched_at = NOW, .lead_ns = 1 * US, .call_ns = 4 * US, .stamp_ns = 1200, .wait_ns = 6 * US};
    int64_t start = (int64_t)NOW, over = 1000 + 6000;
    struct gpu_interval ran = gpu_time_alone(&facts, start, 5000 + over, &clock);
    CHECK(ran.to - ran.from == 5000 && ran.to - ran.called == 11000);
    facts.exact_ns = 3 * US;
    ran = gpu_time_alone(&facts, start, 5000 + over, &clock);
    CHECK(ran.to - ran.from == 5000); /* it is not always the same */
    facts.steady = true;
    ran = gpu_time_alone(&facts, start, 5000 + over, &clock);
    CHECK(ran.to - ran.from == 3000); /* the call took a little longer than calls do */
    ran = gpu_time_alone(&facts, start, 1000 + over, &clock);
    CHECK(ran.to - ran.from == 3000); /* or less */
    facts.slow_ns = 30 * US;
    ran = gpu_time_alone(&facts, start, 33000 + over, &clock);
    CHECK(ran.to - ran.from == 3000); /* or its thread stood still for a while */
    facts.slow_ns = 0;
    ran = gpu_time_alone(&facts, start, 1000 + 2000, &clock);
    CHECK(ran.to - ran.from ==
          1000); /* but all of it took two microseconds, whatever is known: the least of a kernel */
    ran = gpu_time_alone(&facts, start, 40000 + over, &clock);
    CHECK(ran.to - ran.from == 40000); /* this was another length */
}

static void what_was_held_is_exact_if_it_was_all_there_in_time(void) {
    struct card_clock clock = {0};
    struct span_facts facts = {
        .held = true, .launched_at = NOW, .lead_ns = 5 * US, .stamp_ns = 1280, .ended_at = NOW + 9 * US};
    CHECK(!gpu_time_is_exact(&facts));
    facts.held_until = NOW + 8 * US;
    CHECK(!gpu_time_is_exact(&facts));
    facts.held_until = NOW + 9 * US;
    CHECK(gpu_time_is_exact(&facts));
    struct gpu_interval ran = gpu_time_alone(&facts, (int64_t)NOW, 3330, &clock); /* an H100's 1.1 us */
    CHECK(ran.to - ran.from == 1090 && !clock.known);
    facts.ended_at = 0;
    CHECK(!gpu_time_is_exact(&facts));
}

int main(void) {
    streams_are_held_for_a_small_part_of_the_time();
    a_kind_is_held_until_it_is_known_and_seldom_then();
    a_kind_that_never_tells_is_let_alone();
    an_average_is_known_once_it_is_sure();
    how_long_launches_wait_is_learnt_from_known_kernels();
    what_is_known_is_charged();
    what_was_held_is_exact_if_it_was_all_there_in_time();
    return checked();
}
