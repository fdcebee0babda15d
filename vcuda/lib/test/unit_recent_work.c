/* What processes of a container tell each other of their work: each check prints a line if it fails; the program's
 * answer is how many did. */

#include "cuda/recent_work.h"
#include "check.h"

#include <stdlib.h>

#define US INT64_C(1000)
#define MS (1000 * US)
#define NOW (INT64_C(90000) * 1000 * MS) /* a machine that has run for a day: past what 32 bits of units hold */
#define ROUNDING VCUDA_RECENT_WORK_UNIT_NS

static struct vcuda_recent_work recent;
static struct recent_copy copy;
static struct busy_interval found[RECENT_WORK_COPIED];

static void begin(void) {
    recent = (struct vcuda_recent_work){0};
    copy = (struct recent_copy){0};
}

static unsigned of_others(uint32_t slot, int64_t from, int64_t to) {
    recent_work_copy(&copy, &recent);
    return recent_work_of_others(&copy, slot, from, to, found);
}

static int64_t sum_of(unsigned count) {
    int64_t sum = 0;
    for (unsigned i = 0; i < count; i++)
        sum += found[i].to - found[i].from;
    return sum;
}

static bool is_about(int64_t ns, int64_t expected, int64_t roundings) {
    return llabs(ns - expected) <= roundings * ROUNDING;
}

static void one_finds_what_others_had_and_not_its_own(void) {
    struct recent_entry mine = {0}, other = {0}, third = {0};
    begin();
    recent_work_add(&recent, &mine, 0, NOW, NOW + 10 * MS);
    recent_work_add(&recent, &other, 1, NOW + 2 * MS, NOW + 4 * MS);
    recent_work_add(&recent, &third, VCUDA_MAX_SLOTS - 1, NOW + 3 * MS, NOW + 5 * MS);
    unsigned count = of_others(0, NOW, NOW + 10 * MS);
    CHECK(count == 1 && is_about(found[0].from, NOW + 2 * MS, 1) && is_about(found[0].to, NOW + 5 * MS, 1), "%u",
          count);
    count = of_others(1, NOW, NOW + 10 * MS);
    CHECK(count == 1 && is_about(sum_of(count), 10 * MS, 2));
    count = of_others(0, NOW + 4 * MS + 500 * US, NOW + 20 * MS);
    CHECK(is_about(sum_of(count), 500 * US, 2), "cut to the time that is asked for");
    CHECK(of_others(0, NOW + 6 * MS, NOW + 7 * MS) == 0);
}

static void work_in_a_row_is_one_entry_and_a_pause_parts_it(void) {
    struct recent_entry mine = {0};
    begin();
    for (int64_t i = 0; i < 1000; i++)
        recent_work_add(&recent, &mine, 3, NOW + 21 * i * US, NOW + 21 * i * US + 20 * US);
    CHECK(recent.entries == 1, "%llu", (unsigned long long)recent.entries);
    recent_work_add(&recent, &mine, 3, NOW + 21 * MS + 30 * US, NOW + 21 * MS + 50 * US);
    CHECK(recent.entries == 2);
    unsigned count = of_others(0, NOW, NOW + 30 * MS);
    CHECK(count == 2 && is_about(sum_of(count), 21 * MS - US + 20 * US, 4), "%u", count);
}

static void what_lies_far_back_or_comes_later_is_not_found(void) {
    struct recent_entry mine = {0};
    begin();
    recent_work_add(&recent, &mine, 3, NOW + 50 * MS, NOW + 60 * MS);
    CHECK(of_others(0, NOW, NOW + 10 * MS) == 0);
    CHECK(of_others(0, NOW + 100 * MS, NOW + 110 * MS) == 0);
    for (int64_t i = 1; i <= VCUDA_RECENT_WORK_ENTRIES; i++)
        recent_work_add(&recent, &mine, 3, NOW + 100 * i * MS, NOW + (100 * i + 1) * MS);
    CHECK(of_others(0, NOW + 50 * MS, NOW + 60 * MS) == 0, "its entry was used again before it was copied");
}

static void what_was_copied_outlasts_the_ring(void) {
    struct recent_entry mine = {0};
    begin();
    recent_work_add(&recent, &mine, 3, NOW + 50 * MS, NOW + 60 * MS);
    for (int64_t i = 1; i <= RECENT_WORK_COPIED; i++) {
        unsigned expected = i < RECENT_WORK_COPIED ? 1 : 0;
        recent_work_copy(&copy, &recent);
        recent_work_add(&recent, &mine, 3, NOW + 100 * i * MS, NOW + (100 * i + 1) * MS);
        CHECK(of_others(0, NOW + 50 * MS, NOW + 60 * MS) == expected, "after %lld more", (long long)i);
    }
}

/* Another process may write any number into the page, and more than the ring holds between two copies. */
static void what_was_missed_is_not_found_where_others_stood(void) {
    struct recent_entry mine = {0};
    for (int missed = 1; missed <= 2 * RECENT_WORK_COPIED; missed++) {
        begin();
        mine = (struct recent_entry){0};
        for (int64_t i = 1; i <= RECENT_WORK_COPIED; i++) {
            recent_work_add(&recent, &mine, 3, NOW + 100 * i * MS, NOW + (100 * i + 1) * MS);
            recent_work_copy(&copy, &recent);
        }
        for (int64_t i = 1; i <= missed; i++)
            recent_work_add(&recent, &mine, 3, NOW - 100 * i * MS, NOW - (100 * i - 1) * MS);
        int kept = missed < RECENT_WORK_COPIED ? RECENT_WORK_COPIED - missed : 0;
        unsigned later = of_others(0, NOW, NOW + 100 * (RECENT_WORK_COPIED + 1) * MS);
        CHECK(later == (unsigned)kept, "%d missed: %u of %d", missed, later, kept);
    }
    recent.entries = 7;
    CHECK(of_others(0, NOW, NOW + 100 * (RECENT_WORK_COPIED + 1) * MS) <= 7, "a number that was set back");
}

/* The sum over processes that settle in turn, each beside what the others told before, is the union of all. */
static void what_each_has_beside_the_others_sums_up_to_the_union(void) {
    enum { PROCESSES = 4, WORKS = 24, SLOTS = 400 };
    for (unsigned seed = 1; seed <= 200; seed++) {
        struct recent_entry last[PROCESSES] = {{0}};
        struct busy_intervals own[PROCESSES] = {{0}};
        bool busy[SLOTS] = {false};
        int64_t sum = 0, all = 0;
        begin();
        srand(seed);
        for (int i = 0; i < WORKS; i++) {
            unsigned process = (unsigned)rand() % PROCESSES;
            int at = rand() % (SLOTS - 40), length = 1 + rand() % 40;
            int64_t from = NOW + at * 128 * US, to = from + length * 128 * US; /* whole units */
            unsigned count = of_others(process, from, to);
            int64_t others = 0;
            for (unsigned j = 0; j < count; j++)
                others += busy_intervals_lack(&own[process], found[j].from, found[j].to);
            sum += busy_intervals_add(&own[process], from, to) - others;
            recent_work_add(&recent, &last[process], process, from, to);
            for (int j = at; j < at + length; j++)
                busy[j] = true;
        }
        for (int j = 0; j < SLOTS; j++)
            all += busy[j] ? 128 * US : 0;
        CHECK(sum == all, "seed %u: %lld of %lld", seed, (long long)sum, (long long)all);
    }
}

/* The page is a tenant's: whatever lies there, intervals come in order, lie in the time and do not meet. */
static void any_bytes_make_intervals_within_the_time(void) {
    srand(7);
    for (int round = 0; round < 2000; round++) {
        unsigned char *byte = (unsigned char *)&recent;
        for (size_t i = 0; i < sizeof recent; i++)
            byte[i] = (unsigned char)rand();
        int64_t from = round % 3 ? NOW : 0, to = from + (1 + rand() % 1000) * MS;
        unsigned count = of_others((uint32_t)rand() % VCUDA_MAX_SLOTS, from, to);
        for (unsigned i = 0; i < count; i++)
            CHECK(found[i].from >= (i ? found[i - 1].to + 1 : from) && found[i].to > found[i].from &&
                  found[i].to <= to);
    }
    CHECK(of_others(0, -5 * MS, MS) == 0, "a time before the machine's clock began");
}

int main(void) {
    one_finds_what_others_had_and_not_its_own();
    work_in_a_row_is_one_entry_and_a_pause_parts_it();
    what_lies_far_back_or_comes_later_is_not_found();
    what_was_copied_outlasts_the_ring();
    what_was_missed_is_not_found_where_others_stood();
    what_each_has_beside_the_others_sums_up_to_the_union();
    any_bytes_make_intervals_within_the_time();
    return checked();
}
