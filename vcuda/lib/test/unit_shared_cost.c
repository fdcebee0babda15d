/* What of a launch's time is its own where others share the card, by hand: each check prints a line if it fails; the
 * program's answer is how many did. */

#include "cuda/shared_cost.h"
#include "check.h"

#define TURN SHARED_COST_TURN_NS
#define TWO (2 * 256) /* containers */
#define SELDOM (256 * 5 / 4)
#define OFTEN (256 * 17 / 10)

/* Without end, for what a test says of single launches. */
static struct shared_room *room(void) {
    static struct shared_room room;
    room = (struct shared_room){.most_q8 = TWO};
    return &room;
}

/* What the launch is charged, of what it took. */
static uint64_t own(struct cost *cost, uint64_t took_ns, bool follows, uint32_t sharers_q8) {
    return took_ns * 256 / shared_cost_divisor(cost, took_ns, follows, false, sharers_q8, room());
}

/* A kind of which these many launches took so long. */
static struct cost *kind(int at, uint64_t took_ns) {
    cost_table[at].key = (uint64_t)at + 1;
    for (int i = 0; i < 4; i++)
        own(&cost_table[at], took_ns, true, TWO);
    return &cost_table[at];
}

static void a_short_kernel_within_its_turn_takes_what_it_takes(void) {
    struct cost *cost = kind(0, 20000);
    CHECK(own(cost, 20000, true, TWO) == 20000);
    CHECK(own(cost, 24000, true, TWO) == 24000);
    CHECK(own(cost, 20000, true, 4 * 256) == 20000);
}

static bool is_near(uint64_t ns, uint64_t expected) {
    return ns + 100 >= expected && ns <= expected + expected / 10;
}

static void one_that_waited_for_others_turns_is_charged_as_known(void) {
    struct cost *cost = kind(1, 20000);
    uint64_t waited = own(cost, 20000 + TURN, true, TWO);
    CHECK(is_near(waited, 20000), "%lu", (unsigned long)waited);
    waited = own(cost, 20000 + 3 * TURN, true, 4 * 256);
    CHECK(is_near(waited, 20000), "%lu", (unsigned long)waited);
    waited = own(cost, 900000, false, TWO); /* of an idle stream, in the middle of another's turn */
    CHECK(is_near(waited, 20000), "%lu", (unsigned long)waited);
    waited = own(cost, 400000, true, SELDOM); /* others come for a moment */
    CHECK(is_near(waited, 20000), "%lu", (unsigned long)waited);
}

static void a_long_run_that_waited_for_a_whole_turn_is_charged_beyond_it(void) {
    struct cost *cost = kind(10, 20000);
    uint64_t charged = own(cost, 900000 + TURN + 200000, true, TWO); /* 100 us for each switch */
    CHECK(charged > 750000 && charged <= 900000, "%lu", (unsigned long)charged);
}

static void a_long_run_behind_own_work_is_its_own(void) {
    struct cost *cost = kind(2, 12000);
    CHECK(own(cost, 1100000, true, TWO) == 1100000);
}

/* One launch in five takes long, beside a container that seldom has work for a whole turn: no turns begin so often. */
static void long_runs_that_come_more_often_than_turns_begin_are_its_own(void) {
    struct cost *often = kind(8, 20000), *seldom = kind(9, 20000);
    for (int i = 0; i < 200; i++) {
        uint64_t charged = own(often, i % 5 ? 20000 : 700000, true, SELDOM);
        CHECK(i < 60 || i % 5 || charged == 700000, "%d: %lu", i, (unsigned long)charged);
        uint64_t waited = own(seldom, i % 50 ? 20000 : 700000, true, SELDOM);
        CHECK(is_near(waited, 20000), "%d: %lu", i, (unsigned long)waited);
    }
    CHECK(is_near(own(often, 700000, false, SELDOM), 20000), "an idle stream waits for a turn each time");
}

static void what_no_turns_explain_is_divided(void) {
    struct cost *cost = kind(3, 6000);
    CHECK(own(cost, 18000000, true, TWO) == 9000000);
}

static void work_of_more_than_a_turn_is_divided(void) {
    struct cost *cost = kind(4, 10000000);
    CHECK(own(cost, 10000000, true, TWO) == 5000000);
}

static void work_of_up_to_a_turn_runs_within_one(void) {
    struct cost *cost = kind(5, TURN - 10000);
    CHECK(own(cost, TURN - 10000, false, TWO) == TURN - 10000);
    uint64_t waited = own(cost, 2 * TURN - 10000, true, TWO);
    CHECK(is_near(waited, TURN - 10000), "%lu", (unsigned long)waited);
}

/* What the launch is charged that began in a turn of its own. */
static uint64_t own_from_turn(struct cost *cost, uint64_t took_ns, uint32_t sharers_q8) {
    return took_ns * 256 / shared_cost_divisor(cost, took_ns, false, true, sharers_q8, room());
}

/* 5 ms and 3 ms beside one that always has work, 3 ms beside three of them. */
static void long_work_that_begins_in_a_turn_of_its_own_has_whole_turns_and_the_rest(void) {
    const uint64_t turn = TURN, switches = SHARED_COST_SWITCH_NS;
    uint64_t five = 5000000 + 2 * (turn + 2 * switches), three = 3000000 + turn + 2 * switches;
    CHECK(is_near(own_from_turn(kind(21, 9000000), five, TWO), 5000000));
    CHECK(is_near(own_from_turn(kind(24, 9000000), three, TWO), 3000000));
    CHECK(is_near(own_from_turn(kind(25, 9000000), three + 2 * (turn + switches), 4 * 256), 3000000));
    CHECK(shared_cost_divisor(kind(26, 9000000), five, false, true, SELDOM, room()) == SELDOM);
}

/* 3 ms beside one whose turns are sometimes shorter, or that rests: one whole turn among them tells. */
static void long_work_has_what_its_launches_agree_on(void) {
    struct cost *cost = kind(27, 9000000);
    const uint64_t turn = TURN, whole = 3000000 + turn + 2 * SHARED_COST_SWITCH_NS;
    own_from_turn(cost, whole, TWO);
    for (int i = 0; i < 8; i++) {
        CHECK(is_near(own_from_turn(cost, 4200000, TWO), 3000000));
        CHECK(is_near(own_from_turn(cost, 3000000, TWO), 3000000));
    }
    for (int i = 0; i < 40; i++) /* it becomes longer */
        own_from_turn(cost, whole + 1500000, TWO);
    CHECK(is_near(own_from_turn(cost, whole + 1500000, TWO), 4500000));
}

/* The host sees another container rest for half of the time, and this one's launches find it at work each time. */
static void others_that_are_met_each_time_always_have_work(void) {
    struct cost *cost = kind(23, 9000000);
    uint64_t three = 3000000 + (uint64_t)TURN + 2 * SHARED_COST_SWITCH_NS;
    for (int i = 0; i < 60; i++)
        own_from_turn(cost, three, SELDOM);
    CHECK(is_near(own_from_turn(cost, three, SELDOM), 3000000));
    for (int i = 0; i < 60; i++)
        shared_cost_divisor(cost, three, false, i % 4 == 0, SELDOM, room());
    CHECK(shared_cost_divisor(cost, three, false, false, SELDOM, room()) == SELDOM);
}

/* Kernels of one name take 20 us or much longer. A launch that began with a time slice did not wait within it. */
static void of_a_kind_that_varies_work_that_begins_in_a_turn_of_its_own_is_charged_whole(void) {
    struct cost *cost = kind(22, 20000);
    CHECK(is_near(700000 * 256 / shared_cost_divisor(cost, 700000, false, true, TWO, room()), 700000));
    uint64_t long_ns = 2500000 + (uint64_t)TURN + 2 * SHARED_COST_SWITCH_NS;
    CHECK(is_near(long_ns * 256 / shared_cost_divisor(cost, long_ns, false, true, TWO, room()), 2500000));
    CHECK(is_near(long_ns * 256 / shared_cost_divisor(cost, long_ns, false, true, SELDOM, room()), TURN));
}

/* A loop of 15 launches of 30 us and one of 1.5 ms, which others do not always share the card with. */
static void what_is_queued_waits_no_longer_than_others_have_turns(void) {
    struct cost *cost = kind(28, 30000);
    struct shared_room met = {.most_q8 = TWO};
    uint64_t had = 0, charged = 0;
    for (int i = 0; i < 1600; i++) {
        uint64_t took = i % 16 ? 30000 : 1500000;
        had += took;
        charged += took * 256 / shared_cost_divisor(cost, took, true, true, SELDOM, &met);
    }
    CHECK(charged <= had && charged > had * 2 / 5, "%lu of %lu", (unsigned long)charged, (unsigned long)had);
    /* Each is a wait for a turn of theirs, which ends early, after one of its own. */
    cost = kind(31, 30000), met = (struct shared_room){.most_q8 = TWO}, charged = 0;
    for (int i = 0; i < 1600; i++) {
        uint64_t took = i % 81 ? 30000 : TURN * 7 / 10 + 30000;
        charged += took * 256 / shared_cost_divisor(cost, took, true, true, OFTEN, &met);
    }
    CHECK(is_near(charged, 1600 * 30000), "%lu", (unsigned long)charged);
}

/* Kernels of one name take 0.3 or 2.5 ms by turns, beside one that is charged a tenth of the time meanwhile: most of
 * them are so long themselves. */
static void of_a_kind_that_varies_no_more_is_a_wait_than_others_are_charged(void) {
    struct cost *cost = kind(33, 300000);
    struct shared_room met = {.most_q8 = TWO, .part_q16 = 65536 / 10};
    uint64_t had = 0, charged = 0;
    for (int i = 0; i < 1000; i++) {
        uint64_t took = i % 2 ? 300000 : 2500000;
        had += took;
        charged += took * 256 / shared_cost_divisor(cost, took, true, i % 3, TWO, &met);
    }
    CHECK(charged <= had * 92 / 100 && charged > had * 85 / 100, "%lu of %lu", (unsigned long)charged,
          (unsigned long)had);
}

/* Kernels of 5 us, one in 150 of which waits for a part of a turn, beside one that is charged three quarters of the
 * time and is at work whenever the host looks. */
static void where_charges_are_known_waits_of_parts_of_turns_are_no_work(void) {
    struct cost *cost = kind(34, 5000);
    struct shared_room met = {.most_q8 = TWO, .part_q16 = 49152};
    uint64_t charged = 0;
    for (int i = 0; i < 3000; i++) {
        uint64_t took = i % 150 ? 5000 : TURN / 3 + 5000;
        charged += took * 256 / shared_cost_divisor(cost, took, true, true, TWO, &met);
    }
    CHECK(is_near(charged, 3000 * 5000), "%lu", (unsigned long)charged);
}

/* A program of one launch of 20 us and one of 0.6 ms by turns, which waits for 0.7 ms before it begins, and never
 * within its launches: others are charged two fifths of its time in flight, and have had them. */
static void what_waited_before_it_began_has_not_waited_within(void) {
    struct cost *cost = kind(35, 20000);
    struct shared_room met = {.most_q8 = TWO, .part_q16 = 65536 * 2 / 5};
    uint64_t had = 0, charged = 0;
    for (int i = 0; i < 1000; i++) {
        uint64_t took = i % 2 ? 600000 : 20000;
        met.before_ns = i % 2 ? 0 : 700000;
        uint64_t own_ns = took * 256 / shared_cost_divisor(cost, took, i % 2, true, SELDOM, &met);
        had += i < 200 ? 0 : took;
        charged += i < 200 ? 0 : own_ns;
    }
    CHECK(charged <= had && charged > had * 97 / 100, "%lu of %lu", (unsigned long)charged, (unsigned long)had);
}

/* Four launches of 20 us and one of 0.9 ms, in a time slice that began with the first of them. */
static void what_ends_within_its_time_slice_has_not_waited(void) {
    struct cost *cost = kind(37, 20000);
    struct shared_room met = {.most_q8 = TWO, .part_q16 = 65536 * 2 / 5, .in_slice = true};
    for (int i = 0; i < 1000; i++) {
        uint64_t took = i % 5 ? 20000 : 900000;
        CHECK(shared_cost_divisor(cost, took, true, true, SELDOM, &met) == 256, "%d", i);
    }
    met.in_slice = false;
    met.into_ns = UINT64_MAX;
    CHECK(shared_cost_divisor(cost, 900000 + TURN, true, true, SELDOM, &met) > 256);
}

/* Kernels of 1 ms, a third of which are interrupted for 1.2 ms, beside one whose charges are far too low. */
static void a_steady_kind_is_charged_what_it_takes_whatever_others_are_charged(void) {
    struct cost *cost = kind(36, 1000000);
    struct shared_room met = {.most_q8 = TWO, .part_q16 = 65536 / 10};
    uint64_t charged = 0;
    for (int i = 0; i < 3000; i++) {
        uint64_t took = i % 3 ? 1000000 : 2200000;
        charged += took * 256 / shared_cost_divisor(cost, took, true, true, SELDOM, &met);
    }
    CHECK(charged <= 3030 * 1000000ull && charged >= 2970 * 1000000ull, "%lu", (unsigned long)charged);
}

/* Kernels of one name take 30 or 400 us by turns; the program waits for each, and pauses. Half of them find others at
 * work, and so begin with a time slice of their own: what those take tells that the others have not waited either. */
static void of_a_kind_that_varies_what_follows_a_pause_has_not_waited(void) {
    struct cost *cost = kind(38, 30000);
    struct shared_room met = {.most_q8 = 4 * 256, .part_q16 = 65536 / 2, .into_ns = UINT64_MAX};
    uint64_t had = 0, charged = 0;
    for (int i = 0; i < 1000; i++) {
        uint64_t took = i % 4 < 2 ? 30000 : 400000;
        met.in_slice = i % 2, met.before_ns = i % 2 ? 1000000 : 0, met.into_ns = i % 2 ? 0 : UINT64_MAX;
        uint64_t charge = took * 256 / shared_cost_divisor(cost, took, false, i % 2, SELDOM, &met);
        had += i < 200 ? 0 : took;
        charged += i < 200 ? 0 : charge;
    }
    CHECK(charged > had * 95 / 100 && charged <= had, "%lu of %lu", (unsigned long)charged, (unsigned long)had);
}

/* Queued launches of one name; of each 20 the first dozen lie within a time slice of their own. `i`: of all. */
static uint64_t of_each_twenty(struct cost *cost, int i, uint64_t took_ns, struct shared_room *met) {
    met->in_slice = i % 20 < 12;
    met->into_ns = met->in_slice ? (uint64_t)(i % 20) * 100000 : UINT64_MAX;
    return took_ns * 256 / shared_cost_divisor(cost, took_ns, true, true, OFTEN, met);
}

/* 20 to 400 us; of those that are not in a slice each fifth waits for 2.5 ms. Others are charged far too little. */
static void a_kind_that_ends_within_a_time_slice_is_known_by_those_that_had_one(void) {
    struct cost *cost = kind(39, 20000);
    struct shared_room met = {.most_q8 = TWO, .part_q16 = 65536 / 50};
    uint64_t had = 0, charged = 0;
    for (int i = 0; i < 4000; i++) {
        uint64_t own_ns = 20000 + (uint64_t)(i * 7 % 20) * 20000, wait_ns = i % 20 >= 12 && i % 5 == 0 ? 2500000 : 0;
        uint64_t charge = of_each_twenty(cost, i, own_ns + wait_ns, &met);
        had += i < 400 ? 0 : own_ns;
        charged += i < 400 ? 0 : charge;
    }
    CHECK(charged > had * 97 / 100 && charged < had * 105 / 100, "%lu of %lu", (unsigned long)charged,
          (unsigned long)had);
}

/* The same, but one in 50 takes 2.5 ms and so never ends within a slice: that is work, and no wait. */
static void one_that_now_and_then_takes_longer_than_a_slice_is_not(void) {
    struct cost *cost = kind(40, 20000);
    struct shared_room met = {.most_q8 = TWO, .part_q16 = 65536 / 50};
    uint64_t had = 0, charged = 0;
    for (int i = 0; i < 4000; i++) {
        bool is_long = i % 50 == 3;
        uint64_t took = is_long ? 2500000 : 20000 + (uint64_t)(i * 7 % 20) * 20000;
        met.in_slice = !is_long, met.into_ns = 100000;
        uint64_t charge = took * 256 / shared_cost_divisor(cost, took, true, true, OFTEN, &met);
        had += i < 400 ? 0 : took;
        charged += i < 400 ? 0 : charge;
    }
    CHECK(charged > had * 95 / 100, "%lu of %lu", (unsigned long)charged, (unsigned long)had);
}

/* 5 ms, beside one that always has work and is charged a fiftieth of the time: its turns are short. */
static void long_work_waits_no_longer_than_others_are_charged(void) {
    struct cost *cost = kind(41, 5000000);
    struct shared_room met = {.most_q8 = TWO, .part_q16 = 65536 / 50};
    uint64_t charged = 0;
    for (int i = 0; i < 300; i++) {
        uint64_t charge = 5200000 * 256 / shared_cost_divisor(cost, 5200000, false, true, TWO, &met);
        charged += i < 100 ? 0 : charge;
    }
    CHECK(charged > 200 * 4700000ull, "%lu", (unsigned long)charged);
}

/* 20 ms, in eight time slices. Between two of them the card turns to three others, which are charged 0.44 of the time,
 * and takes 0.1 ms for each turn. */
static void switches_count_for_each_slice_of_long_work(void) {
    struct cost *cost = kind(44, 20000000);
    struct shared_room met = {.most_q8 = 4 * 256, .part_q16 = 65536 * 44 / 100};
    uint64_t charged = 0;
    for (int i = 0; i < 200; i++) {
        uint64_t charge = 43000000 * 256ull / shared_cost_divisor(cost, 43000000, false, true, 3 * 256, &met);
        charged += i < 100 ? 0 : charge;
    }
    CHECK(charged > 100 * 20000000ull && charged < 100 * 21500000ull, "%lu", (unsigned long)charged);
}

/* What waits elsewhere beyond others' charges is not charged to a long kernel, which waits for a turn as they are. */
static void others_waits_are_not_charged_to_long_work(void) {
    struct cost *cost = kind(45, 2700000), *waits = kind(46, 20000);
    struct shared_room met = {.most_q8 = TWO, .part_q16 = 65536 * 47 / 100, .into_ns = UINT64_MAX};
    uint64_t charged = 0;
    for (int i = 0; i < 200; i++) {
        met.before_ns = 2500000;
        for (int k = 0; k < 10; k++)
            shared_cost_divisor(waits, 20000, false, true, TWO, &met);
        met.before_ns = 0;
        uint64_t charge = 5300000 * 256 / shared_cost_divisor(cost, 5300000, false, true, TWO, &met);
        charged += i < 100 ? 0 : charge;
    }
    CHECK(charged > 100 * 2600000ull && charged < 100 * 3000000ull, "%lu", (unsigned long)charged);
}

/* 3 ms, that took 3 or 5.6 ms beside one other: whatever the other is charged, little doubt is left. Where each launch
 * waits there is. */
static void what_long_work_takes_alone_is_known_where_its_launches_agree(void) {
    struct cost *cost = kind(42, 3000000), *waits = kind(43, 3000000);
    struct shared_room met = {.most_q8 = TWO, .part_q16 = 65536 / 2};
    CHECK(!shared_cost_steady_ns(cost));
    for (int i = 0; i < 40; i++) {
        shared_cost_divisor(cost, i % 5 ? 5550000 : 3000000, false, true, TWO, &met);
        shared_cost_divisor(waits, 5550000, false, true, TWO, &met);
    }
    CHECK(shared_cost_steady_ns(cost) == 3000000, "%lu", (unsigned long)shared_cost_steady_ns(cost));
    CHECK(!shared_cost_steady_ns(waits), "%lu", (unsigned long)shared_cost_steady_ns(waits));
}

/* Three others rest for most of a tenth of a second, and now all of them have work. */
static void more_others_at_once_than_in_the_mean_explain_a_longer_wait(void) {
    struct cost *cost = kind(29, 20000);
    struct shared_room met = {.most_q8 = 4 * 256};
    const uint64_t took = 20000 + 3 * ((uint64_t)TURN + SHARED_COST_SWITCH_NS) + SHARED_COST_SWITCH_NS;
    CHECK(is_near(took * 256 / shared_cost_divisor(cost, took, true, true, SELDOM, &met), 20000));
    met = (struct shared_room){.most_q8 = TWO};
    CHECK(shared_cost_divisor(cost, took, true, true, SELDOM, &met) == SELDOM);
}

/* 3 ms: once beside all three others, then beside two. */
static void long_work_beside_several_is_told_by_the_fullest_round(void) {
    struct cost *cost = kind(30, 9000000);
    const uint32_t nearly = 4 * 256 * 7 / 8;
    struct shared_room met = {.most_q8 = 4 * 256};
    const uint64_t each = (uint64_t)TURN + SHARED_COST_SWITCH_NS, two = 3000000 + 2 * each, three = 3000000 + 3 * each;
    shared_cost_divisor(cost, three + SHARED_COST_SWITCH_NS, false, true, nearly, &met);
    for (int i = 0; i < 40; i++)
        shared_cost_divisor(cost, i % 8 ? two : three + SHARED_COST_SWITCH_NS, false, true, nearly, &met);
    CHECK(is_near(two * 256 / shared_cost_divisor(cost, two, false, true, nearly, &met), 3000000));
}

static void the_first_launches_are_divided_and_the_shortest_is_known(void) {
    struct cost *cost = &cost_table[6];
    cost->key = 7;
    CHECK(own(cost, TURN, false, TWO) == TURN / 2);
    CHECK(own(cost, TURN, false, TWO) == TURN / 2);
    CHECK(own(cost, 30000, true, TWO) == 15000);
    own(cost, TURN, false, TWO);
    uint64_t waited = own(cost, TURN, false, TWO);
    CHECK(is_near(waited, 30000), "%lu", (unsigned long)waited);
    cost->key = 8; /* another kind has its place now */
    CHECK(own(cost, 30000, true, TWO) == 15000);
}

/* Each launch teaches what one of its kind costs that is not measured. */
static void a_wait_among_the_first_launches_is_none_of_their_work(void) {
    struct cost *cost = &cost_table[32];
    cost->key = 33;
    CHECK(own(cost, 3000, true, TWO) == 1500);
    uint64_t waited = own(cost, TURN / 2, false, TWO);
    CHECK(is_near(waited, 3000), "%lu", (unsigned long)waited);
}

static void kernels_that_become_shorter_or_longer_are_followed(void) {
    struct cost *cost = kind(7, 100000);
    own(cost, 20000, true, TWO);
    uint64_t waited = own(cost, 20000 + TURN, true, TWO);
    CHECK(is_near(waited, 20000), "%lu", (unsigned long)waited);
    for (int i = 0; i < 100; i++)
        CHECK(own(cost, 60000, true, TWO) == 60000);
    waited = own(cost, 60000 + TURN, true, TWO);
    CHECK(is_near(waited, 60000), "%lu", (unsigned long)waited);
}

/* Processes of one container do not always have work: their time slices end early. */
static void what_follows_waits_for_a_part_of_a_turn_too_where_others_rest(void) {
    struct cost *cost = kind(20, 6000);
    uint64_t rests = shared_cost_own_ns(cost, 700000, true, false, TWO);
    CHECK(is_near(rests, 6000), "%lu", (unsigned long)rests);
    CHECK(shared_cost_own_ns(cost, 700000, true, true, TWO) == 700000);
    CHECK(shared_cost_own_ns(cost, 6000, true, false, TWO) == 6000);
    CHECK(!shared_cost_own_ns(cost, 9 * (uint64_t)TURN, true, false, TWO)); /* no turns explain it */
}

int main(void) {
    a_short_kernel_within_its_turn_takes_what_it_takes();
    more_others_at_once_than_in_the_mean_explain_a_longer_wait();
    long_work_beside_several_is_told_by_the_fullest_round();
    one_that_waited_for_others_turns_is_charged_as_known();
    a_long_run_that_waited_for_a_whole_turn_is_charged_beyond_it();
    a_long_run_behind_own_work_is_its_own();
    long_runs_that_come_more_often_than_turns_begin_are_its_own();
    what_no_turns_explain_is_divided();
    work_of_more_than_a_turn_is_divided();
    work_of_up_to_a_turn_runs_within_one();
    long_work_that_begins_in_a_turn_of_its_own_has_whole_turns_and_the_rest();
    long_work_has_what_its_launches_agree_on();
    others_that_are_met_each_time_always_have_work();
    of_a_kind_that_varies_work_that_begins_in_a_turn_of_its_own_is_charged_whole();
    what_is_queued_waits_no_longer_than_others_have_turns();
    of_a_kind_that_varies_no_more_is_a_wait_than_others_are_charged();
    where_charges_are_known_waits_of_parts_of_turns_are_no_work();
    what_waited_before_it_began_has_not_waited_within();
    a_steady_kind_is_charged_what_it_takes_whatever_others_are_charged();
    what_ends_within_its_time_slice_has_not_waited();
    of_a_kind_that_varies_what_follows_a_pause_has_not_waited();
    a_kind_that_ends_within_a_time_slice_is_known_by_those_that_had_one();
    one_that_now_and_then_takes_longer_than_a_slice_is_not();
    long_work_waits_no_longer_than_others_are_charged();
    what_long_work_takes_alone_is_known_where_its_launches_agree();
    switches_count_for_each_slice_of_long_work();
    others_waits_are_not_charged_to_long_work();
    the_first_launches_are_divided_and_the_shortest_is_known();
    a_wait_among_the_first_launches_is_none_of_their_work();
    kernels_that_become_shorter_or_longer_are_followed();
    what_follows_waits_for_a_part_of_a_turn_too_where_others_rest();
    return checked();
}
