/* GPU time from host times and events, by hand: each check prints a line if it fails; the program's answer is how many
 * did. Whole programs are replayed through the same arithmetic in test/replay. */
#include <inttypes.h>

#include "cuda/gpu_time.h"
#include "cuda/span_plan.h"
#include "check.h"

#define US UINT64_C(1000)
#define NOW (1000 * US)
#define OFFSET 5000000 /* of the card's clock over the host's */

static void a_stream_is_busy_for_what_was_launched_and_idle_after_that(void) {
    struct stream_clock clock = {0};
    stream_clock_launched(&clock, NOW, true, 100 * US);
    stream_clock_launched(&clock, NOW + 10 * US, false, 100 * US);
    CHECK(clock.run_from == NOW && clock.idle_at == NOW + 200 * US);
    stream_clock_launched(&clock, NOW + 900 * US, true, 10 * US);
    CHECK(clock.run_from == NOW + 900 * US && clock.idle_at == NOW + 910 * US);
}

static void what_was_measured_moves_a_streams_end(void) {
    struct stream_clock clock = {.run_from = NOW, .idle_at = NOW + 200 * US};
    stream_clock_corrected(&clock, 100 * US, 40 * US);
    CHECK(clock.idle_at == NOW + 140 * US);
    stream_clock_corrected(&clock, UINT64_MAX, 0);
    CHECK(clock.idle_at == clock.run_from);
}

static void a_start_that_seems_late_moves_no_clock(void) {
    struct card_clock clock = {0};
    uint64_t now = NOW;
    card_clock_seen(&clock, OFFSET, now);
    for (int i = 0; i < 10000; i++, now += 500 * US) { /* a stream that waits for the legacy one, three times of four */
        card_clock_seen(&clock, OFFSET + (i % 4 ? 150000 : 0), now);
        CHECK(clock.offset_ns == OFFSET);
    }
    for (int i = 0; i < 600; i++, now += 500 * US) /* the clocks part: 20 millionths */
        card_clock_seen(&clock, OFFSET + 10 * (i + 1) + (i % 4 ? 150000 : 0), now);
    CHECK(clock.offset_ns > OFFSET + 1500 && clock.offset_ns <= OFFSET + 6000, "%" PRId64, clock.offset_ns - OFFSET);
    card_clock_seen(&clock, OFFSET - 700, now);
    CHECK(clock.offset_ns == OFFSET - 700);
}

/* Beside another process that always has work, for a second no launch finds the card free. */
static void starts_that_are_all_late_move_a_clock_no_faster_than_clocks_drift(void) {
    struct card_clock clock = {0};
    uint64_t now = NOW;
    card_clock_seen(&clock, OFFSET, now);
    for (int i = 0; i < 2000; i++, now += 500 * US)
        card_clock_seen(&clock, OFFSET + 400000 + 1000 * (i % 7), now);
    CHECK(clock.offset_ns >= OFFSET && clock.offset_ns <= OFFSET + 1000000000 / CLOCK_DRIFT_PARTS, "%" PRId64,
          clock.offset_ns - OFFSET);
    for (int i = 0; i < 2000; i++, now += 500 * US) /* the machine was suspended */
        card_clock_seen(&clock, OFFSET + 5000000000, now);
    CHECK(clock.offset_ns == OFFSET + 5000000000);
}

static struct span_facts launched_alone(uint64_t recorded_at) {
    return (struct span_facts){
        .launched_at = recorded_at + 1 * US, .lead_ns = 1 * US, .call_ns = 2 * US, .stamp_ns = 1200};
}

static void a_launch_on_an_idle_stream_runs_once_it_has_reached_the_card(void) {
    struct card_clock clock = {0};
    struct span_facts facts = launched_alone(NOW);
    int64_t start = (int64_t)NOW + OFFSET, wait = 2000 + 1600; /* half a call as guessed, and until a kernel starts */
    struct gpu_interval ran = gpu_time_alone(&facts, start, 1000 + wait + 10000 + 1200, &clock);
    CHECK(ran.from == start + 1000 + wait && ran.to == ran.from + 10000 && !ran.waited);
    facts.wait_ns = 3000; /* as is known of others: from the call to the kernel's start, and a record */
    ran = gpu_time_alone(&facts, start, 13000, &clock);
    CHECK(ran.from == start - 1200 + 1000 + 3000);
}

static void a_launch_behind_other_work_runs_from_its_start_event_on(void) {
    struct card_clock clock = {0};
    struct span_facts facts = launched_alone(NOW);
    gpu_time_alone(&facts, (int64_t)NOW + OFFSET, 20000, &clock);
    facts = launched_alone(NOW + 100 * US);
    int64_t start = (int64_t)(NOW + 100 * US) + OFFSET + 70000;
    struct gpu_interval ran = gpu_time_alone(&facts, start, 10000 + 1200, &clock);
    CHECK(ran.from == start && ran.to == start + 10000 && ran.waited);
    start = (int64_t)(NOW + 100 * US) + OFFSET + 4000; /* the work in front of it ended while it was being launched */
    ran = gpu_time_alone(&facts, start, 12000 + 1200, &clock);
    CHECK(ran.from == start + 1000 + 3600 - 4000);
}

static void a_held_launch_is_measured_exactly(void) {
    struct card_clock clock = {0};
    struct span_facts facts = launched_alone(NOW);
    facts.held = true;
    struct gpu_interval ran = gpu_time_alone(&facts, 5 * OFFSET, 900 + 10000 + 1200, &clock);
    CHECK(ran.to - ran.from == 10000 && !clock.known);
}

static void no_kernel_is_shorter_than_a_microsecond(void) {
    struct card_clock clock = {0};
    struct span_facts facts = launched_alone(NOW);
    struct gpu_interval ran = gpu_time_alone(&facts, (int64_t)NOW + OFFSET, 1000 + 3600 + 1200, &clock);
    CHECK(ran.to - ran.from == 1000);
}

static void a_launchs_call_takes_about_the_least_of_the_last(void) {
    uint64_t known = launch_call_ns(0, 3 * US);
    CHECK(known == 3 * US);
    known = launch_call_ns(known, 2 * US);
    CHECK(known == 2 * US);
    known = launch_call_ns(known, 900 * US); /* its thread stood still */
    CHECK(known < 2 * US + 10);
    for (int i = 0; i < 2000; i++)
        known = launch_call_ns(known, 4 * US); /* the machine has become slower */
    CHECK(known > 3700 && known <= 4 * US);
    for (int i = 0; i < 5000; i++)
        known = launch_call_ns(known, 50 * US);
    CHECK(known == 8 * US); /* no call of a launch takes longer, whatever a program does meanwhile */
    CHECK(launch_reaches_ns(4 * US, 4 * US, false) == 2 * US && launch_reaches_ns(4 * US, 3 * US, false) == 1500);
    CHECK(launch_reaches_ns(4 * US, 900 * US, false) == 2 * US);  /* its thread stood still */
    CHECK(launch_reaches_ns(4 * US, 900 * US, true) == 898 * US); /* it loaded the function's code */
}

static void a_tallied_span_is_as_long_as_expected_after_what_its_stream_ran_before(void) {
    struct card_clock clock = {.offset_ns = OFFSET, .known = true};
    struct span_facts facts = {.launched_at = NOW, .expected_ns = 100 * US};
    int64_t launched = (int64_t)NOW + OFFSET;
    struct gpu_interval ran = gpu_time_expected(&facts, launched + 20000, 256, &clock);
    CHECK(ran.from == launched + 20000 && ran.to == launched + 120000);
    ran = gpu_time_expected(&facts, launched - 20000, 512, &clock);
    CHECK(ran.from == launched && ran.to == launched + 200000);
}

static void a_launch_is_measured_while_a_window_is_open_and_where_it_is_long_or_new(void) {
    struct cost cost = {.ns = 20 * US, .seen = COST_FIRST};
    CHECK(!span_plan_is_alone(&cost, false) && span_plan_is_alone(&cost, true));
    cost.seen = COST_FIRST - 1;
    CHECK(span_plan_is_alone(&cost, false));
    cost = (struct cost){.ns = SPAN_PLAN_LONG_NS, .seen = COST_FIRST};
    CHECK(span_plan_is_alone(&cost, false));
    cost = (struct cost){.ns = SPAN_PLAN_VARIES_NS, .spread_ns = SPAN_PLAN_VARIES_NS, .seen = COST_FIRST};
    CHECK(span_plan_varies(&cost) && !span_plan_is_alone(&cost, false));
    CHECK(!span_plan_is_full(SPAN_PLAN_TALLY_NS - 1, SPAN_PLAN_LAUNCHES - 1));
    CHECK(span_plan_is_full(SPAN_PLAN_TALLY_NS, 1) && span_plan_is_full(1, SPAN_PLAN_LAUNCHES));
}

int main(void) {
    a_stream_is_busy_for_what_was_launched_and_idle_after_that();
    what_was_measured_moves_a_streams_end();
    a_start_that_seems_late_moves_no_clock();
    starts_that_are_all_late_move_a_clock_no_faster_than_clocks_drift();
    a_launch_on_an_idle_stream_runs_once_it_has_reached_the_card();
    a_launch_behind_other_work_runs_from_its_start_event_on();
    a_held_launch_is_measured_exactly();
    no_kernel_is_shorter_than_a_microsecond();
    a_launchs_call_takes_about_the_least_of_the_last();
    a_tallied_span_is_as_long_as_expected_after_what_its_stream_ran_before();
    a_launch_is_measured_while_a_window_is_open_and_where_it_is_long_or_new();
    return checked();
}
