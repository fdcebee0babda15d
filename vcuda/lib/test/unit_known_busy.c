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

static void a_long_kernel_that_was_charged_as_a_short_one_is_charged(void) {
    begin();
    charge(START, START + 20000);
    known_busy_add(&known, START, START + 27 * MS);
    CHECK(known_busy_waits(&known));
    CHECK(known_busy_compare(&known, &timeline, 256, false, LATER) == 27 * MS - 20000);
    CHECK(!known_busy_waits(&known));
    CHECK(known_busy_compare(&known, &timeline, 256, false, LATER) == 0);
    CHECK(timeline_us(&timeline, 1026) == 1000 && timeline_us(&timeline, 1027) == 0);
}

static void what_was_charged_where_it_ran_costs_no_more(void) {
    begin();
    for (int64_t at = START; at < START + 50 * MS; at += 200000) {
        charge(at, at + 200000);
        known_busy_add(&known, at, at + 200000);
    }
    CHECK(known_busy_compare(&known, &timeline, 256, false, LATER) == 0);
}

static void a_little_that_was_charged_too_early_counts(void) {
    begin();
    charge(START + 700000, START + MS); /* it ran a millisecond later */
    known_busy_add(&known, START + MS, START + MS + 300000);
    CHECK(known_busy_compare(&known, &timeline, 256, false, LATER) == 0);
}

static void but_not_what_was_charged_long_before(void) {
    begin();
    charge(START, START + MS);
    known_busy_add(&known, START + 3 * MS, START + 4 * MS);
    CHECK(known_busy_compare(&known, &timeline, 256, false, LATER) == MS);
    begin();
    for (int64_t ms = 0; ms < 20; ms++)
        charge(START + ms * MS, START + ms * MS + MS);
    known_busy_add(&known, START + 20 * MS, START + 30 * MS);
    CHECK(known_busy_compare(&known, &timeline, 256, false, LATER) == 10 * MS - KNOWN_BUSY_EARLY_US * 1000);
}

static void nothing_is_compared_before_all_of_it_may_have_been_settled(void) {
    begin();
    known_busy_add(&known, START, START + 2 * MS);
    CHECK(known_busy_compare(&known, &timeline, 256, false, START + 2 * MS) == 0);
    CHECK(known_busy_waits(&known));
    charge(START, START + 2 * MS); /* by another stream, later */
    CHECK(known_busy_compare(&known, &timeline, 256, false, LATER) == 0);
}

static void two_streams_at_once_are_busy_once(void) {
    begin();
    known_busy_add(&known, START, START + 3 * MS);
    known_busy_add(&known, START + MS, START + 4 * MS);
    CHECK(known_busy_compare(&known, &timeline, 256, false, LATER) == 4 * MS);
}

static void time_that_is_known_late_is_compared_again(void) {
    begin();
    known_busy_add(&known, START + 90 * MS, START + 91 * MS);
    CHECK(known_busy_compare(&known, &timeline, 256, false, START + 100 * MS) == MS);
    known_busy_add(&known, START, START + 100 * MS); /* a kernel of another stream that ends only now */
    CHECK(known_busy_compare(&known, &timeline, 256, false, LATER) == 99 * MS);
}

static void of_a_kernel_longer_than_the_timeline_its_end_is_charged(void) {
    begin();
    known_busy_add(&known, START, START + 2 * VCUDA_TIMELINE_CELLS * MS);
    int64_t end = START + 2 * VCUDA_TIMELINE_CELLS * MS;
    int64_t lacked = known_busy_compare(&known, &timeline, 256, false, end + 6 * MS); /* of the last half second */
    CHECK(lacked == (VCUDA_TIMELINE_CELLS - 7) * MS, "%ld", (long)lacked);
    known_busy_add(&known, -MS, MS);
    known_busy_add(&known, START + MS, START);
    CHECK(!known_busy_waits(&known));
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
    return checked();
}
