/* When a best-effort container puts no work on its card: each check prints a line if it fails; the program's answer is
 * how many did. */
#include "cuda/gate.h"

#include "check.h"

#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)
#define BEGIN (100 * SECOND)

enum { SIXTY = 60 * 256, WHOLE = 100 * 256 };

static void a_gate_is_closed_until_its_deadline_and_for_no_absurd_time(void) {
    CHECK(!gate_is_closed(0, BEGIN));
    CHECK(!gate_is_closed(BEGIN, BEGIN));
    CHECK(gate_is_closed(BEGIN + 1, BEGIN));
    CHECK(gate_is_closed(BEGIN + GATE_FUTURE_MOST_NS, BEGIN));
    CHECK(!gate_is_closed(BEGIN + GATE_FUTURE_MOST_NS + 1, BEGIN));
    CHECK(!gate_is_closed(UINT64_MAX, BEGIN));
}

static uint64_t room(uint64_t ahead, uint64_t since, uint64_t head, bool undisturbed) {
    struct gate_flight flight = {.ahead_ns = ahead, .since = since, .head_ns = head};
    return gate_room_wait_ns(&flight, undisturbed, BEGIN);
}

static void short_work_is_launched_while_little_is_in_flight(void) {
    CHECK(room(0, 0, 100000, true) == 0);
    CHECK(room(GATE_AHEAD_NS, 0, 100000, true) == 0);
    CHECK(room(GATE_AHEAD_NS + 200000, 0, 100000, true) == 200000);
    CHECK(room(GATE_AHEAD_NS + 1, 0, 100000, true) == GATE_NAP_LEAST_NS);
    CHECK(room(SECOND, 0, SECOND, true) == GATE_NAP_MOST_NS);
}

/* The next kernel is launched shortly before the one that runs is expected to end, unless something kept it waiting. */
static void long_work_follows_as_the_one_before_ends(void) {
    CHECK(room(10 * MS, BEGIN - 5 * MS, 10 * MS, true) == GATE_NAP_MOST_NS);
    CHECK(room(10 * MS, BEGIN - 10 * MS + GATE_AHEAD_NS, 10 * MS, true) == 0);
    CHECK(room(10 * MS, BEGIN - 10 * MS + GATE_AHEAD_NS, 10 * MS, false) == GATE_NAP_LATE_NS);
    CHECK(room(10 * MS, BEGIN - 5 * MS, 10 * MS, false) == GATE_NAP_MOST_NS, "it cannot end so soon");
    CHECK(room(20 * MS, BEGIN - SECOND, 10 * MS, true) == GATE_NAP_MOST_NS, "no more than its head is behind it");
    CHECK(room(10 * MS, BEGIN + MS, 10 * MS, true) == GATE_NAP_MOST_NS, "a clock that ran back");
}

/* Steps of a millisecond: the container has the card in those for which `runs` says so. Returns the first millisecond
 * in which it is owed time, or -1. */
struct history {
    struct gate_floor floor;
    uint64_t had, now;
};

static bool step(struct history *history, bool runs, uint32_t share) {
    history->now += MS;
    history->had += runs ? MS : 0;
    gate_floor_note(&history->floor, SECOND, history->had, history->now);
    return gate_floor_owes(&history->floor, share, WHOLE, SECOND, history->had, history->now);
}

static void who_had_more_waits_as_long_as_its_share_allows(void) {
    struct history history = {.now = BEGIN};
    int owed = -1;
    for (int at = 0; at < 2000; at++)
        step(&history, true, SIXTY);
    for (int at = 0; at < 1000 && owed < 0; at++)
        owed = step(&history, false, SIXTY) ? at : -1;
    CHECK(owed >= 340 && owed <= 400, "%d ms", owed);
}

/* Whatever the gate does: a container that launches whenever it is owed time, and has the card then, gets its share of
 * each window, to within what its marks can tell. */
static void every_window_has_the_share(void) {
    static uint64_t ran[20000];
    struct history history = {.now = BEGIN};
    uint32_t dice = 1;
    bool owed = false, closed = false;
    for (int at = 0; at < 20000; at++) {
        dice = dice * 1664525 + 1013904223;
        if (dice >> 16 < 1500)
            closed = !closed;
        bool runs = !closed || owed;
        owed = step(&history, runs, SIXTY);
        ran[at] = history.had;
        if (at >= 3000)
            CHECK(ran[at] - ran[at - 1000] >= 585 * MS, "%llu ms before %d",
                  (unsigned long long)((ran[at] - ran[at - 1000]) / MS), at);
    }
}

static void a_new_process_is_owed_nothing_at_once(void) {
    struct history history = {.now = BEGIN};
    CHECK(!step(&history, false, SIXTY));
    CHECK(!gate_floor_owes(&(struct gate_floor){0}, SIXTY, WHOLE, SECOND, 0, BEGIN));
}

static void a_long_pause_and_a_clock_that_runs_back_are_survived(void) {
    struct history history = {.now = BEGIN};
    for (int at = 0; at < 1500; at++)
        step(&history, true, SIXTY);
    history.now += 100 * SECOND;
    history.had += 100 * SECOND; /* it wanted nothing */
    CHECK(!step(&history, false, SIXTY));
    history.now -= 50 * SECOND;
    CHECK(!step(&history, false, SIXTY));
    gate_floor_note(&history.floor, 0, 0, BEGIN);
    CHECK(!gate_floor_owes(&history.floor, UINT32_MAX, UINT32_MAX, 0, 0, BEGIN));
}

int main(void) {
    a_gate_is_closed_until_its_deadline_and_for_no_absurd_time();
    short_work_is_launched_while_little_is_in_flight();
    long_work_follows_as_the_one_before_ends();
    who_had_more_waits_as_long_as_its_share_allows();
    every_window_has_the_share();
    a_new_process_is_owed_nothing_at_once();
    a_long_pause_and_a_clock_that_runs_back_are_survived();
    return checked();
}
