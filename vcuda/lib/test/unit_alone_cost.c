/* What is known of the cost on a card of its own, by what was told: each check prints a line if it fails; the
 * program's answer is how many did. */
#include <inttypes.h>

#include "check.h"
#include "cuda/alone_cost.h"

#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)

static struct cost *kind(uintptr_t function) {
    return cost_find(cost_key((const void *)(function << 12), 1));
}

/* A kind that is known to cost so much. */
static struct cost *known(uintptr_t function, uint64_t ns) {
    struct cost *cost = kind(function);
    for (int i = 0; i < ALONE_COST_RUNS; i++)
        alone_cost_ran(cost, ns, SECOND);
    CHECK(alone_cost_ns(cost) == ns, "%" PRIu64, alone_cost_ns(cost));
    return cost;
}

static void of_the_first_few_the_most_counts(void) {
    struct cost *cost = kind(1);
    for (int i = 0; i < ALONE_COST_RUNS - 1; i++) {
        alone_cost_ran(cost, i == 1 ? 2 * MS : MS / 8, SECOND);
        CHECK(alone_cost_ns(cost) == 0, "one may have loaded its code: a few are not enough");
    }
    alone_cost_ran(cost, MS, SECOND);
    CHECK(alone_cost_ns(cost) == 2 * MS, "%" PRIu64, alone_cost_ns(cost));
}

static void later_runs_count_by_how_long_ago_the_last_one_was(void) {
    struct cost *cost = known(2, 2 * MS);
    alone_cost_ran(cost, 8 * MS, SECOND + ALONE_COST_AGE_NS / 2);
    CHECK(alone_cost_ns(cost) == 5 * MS, "%" PRIu64, alone_cost_ns(cost));
    alone_cost_ran(cost, MS, SECOND + 2 * (uint64_t)ALONE_COST_AGE_NS);
    CHECK(alone_cost_ns(cost) == 5 * MS, "after a pause one that seems short changes nothing");
}

static void runs_that_follow_each_other_closely_count_alike(void) {
    struct cost *cost = known(8, 5 * MS);
    for (int i = 1; i <= 39; i++)
        alone_cost_ran(cost, 3 * MS, SECOND + (uint64_t)i);
    uint64_t ns = alone_cost_ns(cost);
    CHECK(ns > 3 * MS && ns < 3 * MS + MS / 10, "a first run beside another container is one of many: %" PRIu64, ns);
}

static void several_shorter_runs_in_a_row_are_believed(void) {
    struct cost *cost = known(3, 5 * MS);
    for (int i = 0; i < ALONE_COST_RUNS; i++)
        alone_cost_ran_crossed(cost, MS);
    CHECK(alone_cost_ns(cost) == MS, "%" PRIu64, alone_cost_ns(cost));
    alone_cost_ran_crossed(cost, MS / 8);
    for (int i = 0; i < ALONE_COST_RUNS - 1; i++)
        alone_cost_ran_crossed(cost, i ? 2 * MS : MS / 2);
    CHECK(alone_cost_ns(cost) == MS, "less now and then changes nothing: %" PRIu64, alone_cost_ns(cost));
    for (int i = 0; i < ALONE_COST_RUNS; i++)
        alone_cost_ran_crossed(cost, i == 1 ? MS / 2 : MS / 4);
    CHECK(alone_cost_ns(cost) == MS / 2, "in a row the most of it counts: %" PRIu64, alone_cost_ns(cost));
}

static void the_least_of_many_mixed_runs_is_believed_if_it_is_more(void) {
    struct cost *cost = known(4, MS / 2);
    for (int i = 0; i < 2 * ALONE_COST_MIXED_RUNS; i++) {
        CHECK(alone_cost_ns(cost) == MS / 2, "longer for a while changes nothing");
        alone_cost_ran_mixed(cost, i % 4 ? 9 * MS : 3 * MS, i != 5,
                             9 * SECOND + (uint64_t)i * ALONE_COST_MIXED_NS / (2 * ALONE_COST_MIXED_RUNS - 1));
    }
    CHECK(alone_cost_ns(cost) == 3 * MS, "%" PRIu64, alone_cost_ns(cost));
    for (int i = 0; i < ALONE_COST_MIXED_RUNS - 1; i++)
        alone_cost_ran_mixed(cost, 9 * MS, false, 12 * SECOND + (uint64_t)i * ALONE_COST_MIXED_NS);
    for (int i = 0; i < 2 * ALONE_COST_MIXED_RUNS; i++)
        alone_cost_ran_mixed(cost, 5 * MS, true, 20 * SECOND + (uint64_t)i * ALONE_COST_MIXED_NS / 20);
    CHECK(alone_cost_ns(cost) == 3 * MS, "neither few of them are enough, nor what others explain: %" PRIu64,
          alone_cost_ns(cost));
}

static void many_far_shorter_runs_are_believed_and_few_are_not(void) {
    struct cost *cost = known(6, 10 * MS);
    const uint64_t runs = 100;
    for (uint64_t i = 0; i < runs; i++) /* never ALONE_COST_RUNS of them in a row */
        alone_cost_ran_mixed(cost, i % 10 ? 11 * MS : MS, true, 2 * SECOND + i * ALONE_COST_MIXED_NS / (runs - 1));
    CHECK(alone_cost_ns(cost) == 10 * MS, "%" PRIu64, alone_cost_ns(cost));
    for (uint64_t i = 0; i < runs; i++)
        alone_cost_ran_mixed(cost, i % 3 ? 11 * MS : MS + i, true, 4 * SECOND + i * ALONE_COST_MIXED_NS / (runs - 1));
    CHECK(alone_cost_ns(cost) == MS + 9, "the last of the shortest four: %" PRIu64, alone_cost_ns(cost));
}

static void what_takes_twice_as_long_at_least_is_believed_whatever_explains_it(void) {
    struct cost *cost = known(7, MS);
    const uint64_t runs = 2 * ALONE_COST_MIXED_RUNS;
    for (uint64_t i = 0; i < runs; i++)
        alone_cost_ran_mixed(cost, 2 * MS, true, 2 * SECOND + i * ALONE_COST_MIXED_NS / (runs - 1));
    CHECK(alone_cost_ns(cost) == MS, "%" PRIu64, alone_cost_ns(cost));
    for (uint64_t i = 0; i < runs; i++)
        alone_cost_ran_mixed(cost, 3 * MS, true, 4 * SECOND + i * ALONE_COST_MIXED_NS / (runs - 1));
    CHECK(alone_cost_ns(cost) == 3 * MS, "%" PRIu64, alone_cost_ns(cost));
}

static void another_kind_in_the_same_place_begins_anew(void) {
    struct cost *cost = known(5, MS);
    cost->key += 2;
    CHECK(alone_cost_ns(cost) == 0, "%" PRIu64, alone_cost_ns(cost));
    alone_cost_ran_crossed(cost, MS / 8);
    alone_cost_ran_mixed(cost, 8 * MS, false, SECOND);
    for (int i = 0; i < ALONE_COST_RUNS; i++)
        alone_cost_ran(cost, MS / 4, SECOND);
    CHECK(alone_cost_ns(cost) == MS / 4, "%" PRIu64, alone_cost_ns(cost));
}

int main(void) {
    of_the_first_few_the_most_counts();
    later_runs_count_by_how_long_ago_the_last_one_was();
    runs_that_follow_each_other_closely_count_alike();
    several_shorter_runs_in_a_row_are_believed();
    the_least_of_many_mixed_runs_is_believed_if_it_is_more();
    many_far_shorter_runs_are_believed_and_few_are_not();
    what_takes_twice_as_long_at_least_is_believed_whatever_explains_it();
    another_kind_in_the_same_place_begins_anew();
    return checked();
}
