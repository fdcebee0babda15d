/* Which launches count as interrupted by a neighbour's time slice: each check prints a line if it fails; the program's
 * answer is how many did. */
#include <inttypes.h>

#include "check.h"
#include "cuda/stall.h"

#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)

static struct vcuda_card_usage line;
static uint64_t now;

/* Many of this kind ran with nobody beside them, over so long. */
static struct cost *seen_alone(uintptr_t function, uint64_t ns, uint64_t over_ns) {
    struct cost *cost = cost_find(cost_key((const void *)(function << 12), 1));
    line = (struct vcuda_card_usage){0};
    now = SECOND;
    for (int i = 0; i < 100; i++)
        stall_measured(&line, cost, ns, false, now += over_ns / 100);
    return cost;
}

static void beside_others(const struct cost *cost, uint64_t ns) {
    stall_measured(&line, cost, ns, true, now += MS);
}

static void what_is_known_and_takes_far_longer_counts(void) {
    struct cost *cost = seen_alone(1, MS / 2, SECOND);
    beside_others(cost, MS);
    beside_others(cost, 8 * MS);
    CHECK(line.known_launches == 2 && line.stalled_launches == 0);
    beside_others(cost, 100 * MS + MS / 2);
    CHECK(line.known_launches == 3 && line.stalled_launches == 1 && line.stalled_ns == 100 * MS, "%" PRIu64,
          line.stalled_ns);
}

static void what_was_never_seen_alone_for_long_is_not_known(void) {
    struct cost *cost = seen_alone(2, MS / 2, 200 * MS);
    beside_others(cost, 100 * MS);
    CHECK(line.known_launches == 0, "others may have been there all the time, and nobody had said so yet");
}

static void what_does_not_fit_into_a_turn_is_not_judged(void) {
    struct cost *cost = seen_alone(3, STALL_KNOWN_MOST_NS + 1, SECOND);
    beside_others(cost, 100 * MS);
    CHECK(line.known_launches == 0);
}

static void of_a_kind_whose_lengths_vary_the_longest_counts(void) {
    struct cost *cost = seen_alone(4, MS / 2, SECOND);
    stall_measured(&line, cost, 40 * MS, false, now += MS);
    for (int i = 0; i < 100; i++)
        stall_measured(&line, cost, MS / 2, false, now += 10 * MS);
    beside_others(cost, 40 * MS);
    CHECK(line.known_launches == 0 && line.stalled_launches == 0);
}

static void a_stall_that_begins_before_others_are_heard_of_is_not_taken_for_the_kinds_length(void) {
    struct cost *cost = seen_alone(5, MS / 2, SECOND);
    for (int i = 0; i < 4; i++) {
        stall_measured(&line, cost, 50 * MS, false, now += MS);
        beside_others(cost, 50 * MS);
        for (int k = 0; k < 100; k++)
            stall_measured(&line, cost, MS / 2, false, now += 10 * MS);
    }
    CHECK(line.stalled_launches == 4, "%" PRIu64, line.stalled_launches);
}

static void another_kind_in_the_same_place_begins_anew(void) {
    struct cost *cost = seen_alone(6, MS / 2, SECOND);
    __atomic_store_n(&cost->key, cost->key ^ 2, __ATOMIC_RELEASE);
    beside_others(cost, 50 * MS);
    CHECK(line.known_launches == 0);
}

int main(void) {
    what_is_known_and_takes_far_longer_counts();
    what_was_never_seen_alone_for_long_is_not_known();
    what_does_not_fit_into_a_turn_is_not_judged();
    of_a_kind_whose_lengths_vary_the_longest_counts();
    a_stall_that_begins_before_others_are_heard_of_is_not_taken_for_the_kinds_length();
    another_kind_in_the_same_place_begins_anew();
    return checked();
}
