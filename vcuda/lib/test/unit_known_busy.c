/* Time in which a context surely had work, against what was charged for it, by hand: each check prints a line if it
 * fails; the program's answer is how many did. */

#include "cuda/known_busy.h"
#include "check.h"
#include "timeline.h"

#define MS INT64_C(1000000)
#define ALONE 256 /* no other container is on the card */
#define START (1000 * MS)
#define LATER (START + 300 * MS)

static struct vcuda_timeline timeline;
static struct known_busy known;

static void begin(void) {
    timeline = (struct vcuda_timeline){0};
    known = (struct known_busy){0};
}

static void charge(int64_t from, int64_t to) {
    timeline_add(&timeline, &(struct timeline_work){from, from, to, to}, ALONE);
}

static void know(int64_t from, int64_t to) {
    known_busy_add(&known, from, from, from, to);
}

static int64_t lacks(int64_t now) {
    return known_busy_compare(&known, &timeline, (struct known_part){256, 256}, false, now);
}

static void a_long_kernel_that_was_charged_as_a_short_one_is_charged(void) {
    begin();
    charge(START, START + 20000);
    know(START, START + 27 * MS);
    CHECK(known_busy_waits(&known));
    CHECK(lacks(LATER) == 27 * MS - 20000);
    CHECK(!known_busy_waits(&known));
    CHECK(lacks(LATER) == 0);
    CHECK(timeline_us(&timeline, 1026) == 1000 && timeline_us(&timeline, 1027) == 0);
}

static void what_was_charged_where_it_ran_costs_no_more(void) {
    begin();
    for (int64_t at = START; at < START + 50 * MS; at += 200000) {
        charge(at, at + 200000);
        know(at, at + 200000);
    }
    CHECK(lacks(LATER) == 0);
}

static void a_little_that_was_charged_too_early_counts(void) {
    begin();
    charge(START + 700000, START + MS); /* it ran a millisecond later */
    know(START + MS, START + MS + 300000);
    CHECK(lacks(LATER) == 0);
}

static void but_not_what_was_charged_long_before(void) {
    begin();
    charge(START, START + MS);
    know(START + 3 * MS, START + 4 * MS);
    CHECK(lacks(LATER) == MS);
    begin();
    for (int64_t ms = 0; ms < 20; ms++)
        charge(START + ms * MS, START + ms * MS + MS);
    know(START + 20 * MS, START + 30 * MS);
    CHECK(lacks(LATER) == 10 * MS - KNOWN_BUSY_EARLY_US * 1000);
}

static void nothing_is_compared_before_all_of_it_may_have_been_settled(void) {
    begin();
    know(START, START + 2 * MS);
    CHECK(lacks(START + 2 * MS) == 0);
    CHECK(known_busy_waits(&known));
    charge(START, START + 2 * MS); /* by another stream, later */
    CHECK(lacks(LATER) == 0);
}

static void two_streams_at_once_are_busy_once(void) {
    begin();
    know(START, START + 3 * MS);
    know(START + MS, START + 4 * MS);
    CHECK(lacks(LATER) == 4 * MS);
}

static void time_that_is_known_late_is_compared_again(void) {
    begin();
    know(START + 90 * MS, START + 91 * MS);
    CHECK(lacks(START + 100 * MS) == MS);
    know(START, START + 100 * MS); /* a kernel of another stream that ends only now */
    CHECK(lacks(LATER) == 99 * MS);
}

static void of_a_kernel_longer_than_the_timeline_its_end_is_charged(void) {
    begin();
    know(START, START + 2 * VCUDA_TIMELINE_CELLS * MS);
    int64_t end = START + 2 * VCUDA_TIMELINE_CELLS * MS;
    int64_t lacked = lacks(end + 6 * MS); /* of the last half second */
    CHECK(lacked == (VCUDA_TIMELINE_CELLS - 7) * MS, "%ld", (long)lacked);
    know(-MS, MS);
    know(START + MS, START);
    CHECK(!known_busy_waits(&known));
}

/* Others may have had half of it first, and are charged half of a long run: an eighth must stand there as a rule. */
static void of_a_long_run_all_but_what_others_have_is_charged(void) {
    const struct known_part part = {32, 128};
    begin();
    known_busy_add(&known, START, START, START + 4 * MS, START + 8 * MS);
    CHECK(known_busy_compare(&known, &timeline, part, false, LATER) == 4 * MS / 8);
    begin();
    known_busy_add(&known, START, START, START + 20 * MS, START + 30 * MS);
    known_busy_add(&known, START, START + 30 * MS, START + 30 * MS, START + 40 * MS);
    int64_t lacked = known_busy_compare(&known, &timeline, part, false, LATER);
    CHECK(lacked == (40 * MS - KNOWN_BUSY_LONG_NS) / 2, "%ld", (long)lacked);
    begin();
    for (int64_t at = START; at < START + 40 * MS; at += MS) /* none of them is long */
        known_busy_add(&known, at, at, at + MS, at + MS);
    CHECK(known_busy_compare(&known, &timeline, part, false, LATER) == 0);
}

int main(void) {
    a_long_kernel_that_was_charged_as_a_short_one_is_charged();
    what_was_charged_where_it_ran_costs_no_more();
    a_little_that_was_charged_too_early_counts();
    but_not_what_was_charged_long_before();
    nothing_is_compared_before_all_of_it_may_have_been_settled();
    two_streams_at_once_are_busy_once();
    time_that_is_known_late_is_compared_again();
    of_a_kernel_longer_than_the_timeline_its_end_is_charged();
    of_a_long_run_all_but_what_others_have_is_charged();
    return checked();
}
