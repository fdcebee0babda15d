/* What the host reads of the timeline, by hand: each check prints a line if it fails; the program's answer is how many
 * did. */

#include "timeline.h"
#include "check.h"

#define MS INT64_C(1000000)
#define ALONE 256 /* no other container is on the card */
#define ROUND ((int64_t)VCUDA_TIMELINE_CELLS * MS)

static struct vcuda_timeline timeline;

static uint32_t us_at(int64_t ms, uint32_t round) {
    uint32_t word = timeline.cell[ms % VCUDA_TIMELINE_CELLS];
    return word >> 16 == round ? word & 0xffff : 0;
}

/* Work that ran just then. */
static int64_t add(int64_t from, int64_t to, uint32_t divisor_q8) {
    return timeline_add(&timeline, &(struct timeline_work){from, from, to, to}, divisor_q8);
}

static uint64_t us_of_all(uint32_t round) {
    uint64_t sum = 0;
    for (int64_t ms = 0; ms < VCUDA_TIMELINE_CELLS; ms++)
        sum += us_at(ms, round);
    return sum;
}

static void work_is_entered_where_it_ran(void) {
    timeline = (struct vcuda_timeline){0};
    add(ROUND + 3 * MS + 250000, ROUND + 6 * MS + 100000, ALONE);
    CHECK(us_at(3, 1) == 750 && us_at(4, 1) == 1000 && us_at(5, 1) == 1000 && us_at(6, 1) == 100);
    CHECK(us_of_all(1) == 2850);
    add(ROUND + 4 * MS, ROUND + 4 * MS + 500000, ALONE);
    CHECK(us_at(4, 1) == 1500); /* two contexts at once */
    add(ROUND + 9 * MS, ROUND + 9 * MS, ALONE);
    add(ROUND + 9 * MS, ROUND + 8 * MS, ALONE);
    CHECK(us_of_all(1) == 3350);
}

static void a_new_round_begins_anew(void) {
    timeline = (struct vcuda_timeline){0};
    add(ROUND + 7 * MS, ROUND + 8 * MS, ALONE);
    add(2 * ROUND + 7 * MS, 2 * ROUND + 7 * MS + 10000, ALONE);
    CHECK(us_at(7, 2) == 10 && us_at(7, 1) == 0);
    add((65536 + 2) * ROUND + 7 * MS, (65536 + 2) * ROUND + 7 * MS + 1000, ALONE);
    CHECK(us_at(7, 2) == 11); /* after nine hours a round has a number again */
}

static void of_long_work_the_end_is_entered(void) {
    timeline = (struct vcuda_timeline){0};
    add(ROUND + 10 * MS, 5 * ROUND, ALONE);
    CHECK(us_of_all(4) == 1000 * VCUDA_TIMELINE_CELLS && us_of_all(1) == 0);
    timeline = (struct vcuda_timeline){0};
    add(-5 * MS, 2 * MS, ALONE); /* the machine has just started */
    CHECK(us_of_all(0) == 2000);
}

static void a_full_cell_stays_full(void) {
    timeline = (struct vcuda_timeline){0};
    for (int i = 0; i < 100; i++)
        add(ROUND, ROUND + MS, ALONE);
    CHECK(us_at(0, 1) == 0xffff);
}

static void a_millisecond_has_room_for_a_thousand_microseconds(void) {
    timeline = (struct vcuda_timeline){0};
    CHECK(add(ROUND, ROUND + 600000, ALONE) == 600000);
    CHECK(add(ROUND + 100000, ROUND + 700000, ALONE) == 400000); /* another process at once */
    CHECK(add(ROUND, ROUND + 500000, ALONE) == 0);
    CHECK(us_at(0, 1) == 1700);                             /* the host is told of all of them */
    CHECK(add(ROUND, ROUND + 500000, 2 * ALONE) == 300000); /* two containers take turns */
    CHECK(add(ROUND + MS - 1000, ROUND + 2 * MS, ALONE) == MS);
}

static void what_finds_no_room_may_have_run_earlier_or_later(void) {
    timeline = (struct vcuda_timeline){0};
    add(ROUND + 4 * MS, ROUND + 5 * MS, ALONE);
    add(ROUND + 3 * MS, ROUND + 3 * MS + 400000, ALONE);
    struct timeline_work work = {ROUND + 3 * MS, ROUND + 4 * MS, ROUND + 5 * MS, ROUND + 7 * MS};
    CHECK(timeline_add(&timeline, &work, ALONE) == MS);
    CHECK(us_at(2, 1) == 0 && us_at(3, 1) == 1000 && us_at(4, 1) == 2000);
    CHECK(us_at(5, 1) == 0 && us_at(6, 1) == 400); /* the millisecond after the one in which it ended */
    work = (struct timeline_work){ROUND + 3 * MS, ROUND + 4 * MS, ROUND + 5 * MS, ROUND + 5 * MS};
    CHECK(timeline_add(&timeline, &work, ALONE) == 0);
}

static void what_is_older_than_the_timeline_fits(void) {
    timeline = (struct vcuda_timeline){0};
    CHECK(add(ROUND, 3 * ROUND, ALONE) == 2 * ROUND);
    CHECK(add(3 * ROUND - MS, 3 * ROUND, ALONE) == 0);
}

static void short_work_in_a_row_adds_up(void) {
    timeline = (struct vcuda_timeline){0};
    int64_t fits = 0;
    for (int64_t at = ROUND; at < ROUND + MS; at += 400)
        fits += add(at, at + 400, ALONE);
    CHECK(fits == MS && us_at(0, 1) == 1000);
}

int main(void) {
    a_millisecond_has_room_for_a_thousand_microseconds();
    what_finds_no_room_may_have_run_earlier_or_later();
    what_is_older_than_the_timeline_fits();
    short_work_in_a_row_adds_up();
    work_is_entered_where_it_ran();
    a_new_round_begins_anew();
    of_long_work_the_end_is_entered();
    a_full_cell_stays_full();
    return checked();
}
