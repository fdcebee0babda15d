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
    CHECK(stream_clock_state(&clock, NOW + 20 * US) == STREAM_BUSY);
    CHECK(stream_clock_state(&clock, NOW + 150 * US) == STREAM_UNSURE); /* within half of what the run takes */
    CHECK(stream_clock_state(&clock, NOW + 250 * US) == STREAM_UNSURE);
    CHECK(stream_clock_state(&clock, NOW + 310 * US) == STREAM_IDLE);
    stream_clock_launched(&clock, NOW + 900 * US, true, 10 * US);
    CHECK(clock.run_from == NOW + 900 * US && clock.idle_at == NOW + 910 * US);
}

static void what_the_driver_says_of_a_stream_moves_its_end(void) {
    struct stream_clock clock = {.run_from = NOW, .idle_at = NOW + 200 * US};
    stream_clock_observed(&clock, NOW + 50 * US, true);
    CHECK(clock.idle_at == NOW + 50 * US);
    stream_clock_observed(&clock, NOW + 90 * US, false);
    CHECK(clock.idle_at < NOW + 90 * US && clock.idle_at >= NOW + 80 * US); /* about to end, for all that is known */
    clock.idle_at = NOW + 200 * US;
    stream_clock_corrected(&clock, 100 * US, 40 * US);
    CHECK(clock.idle_at == NOW + 140 * US);
    stream_clock_corrected(&clock, UINT64_MAX, 0);
    CHECK(clock.idle_at == clock.run_from);
}

static void a_stream_that_waits_is_idle_only_when_the_driver_says_so(void) {
    struct stream_clock clock = {.run_from = NOW, .idle_at = NOW + 10 * US, .waits = true};
    CHECK(stream_clock_state(&clock, NOW + 900 * US) == STREAM_UNSURE);
    stream_clock_observed(&clock, NOW + 900 * US, false);
    CHECK(stream_clock_state(&clock, NOW + 9000 * US) == STREAM_UNSURE);
    stream_clock_observed(&clock, NOW + 9000 * US, true);
    CHECK(stream_clock_state(&clock, NOW + 9001 * US) == STREAM_IDLE);
}

static void measuring_takes_its_percentage_of_a_threads_time(void) {
    uint64_t newcomers = 0, spent = 0;
    struct measuring_budget budget = {0};
    for (uint64_t at = NOW; at < NOW + 100000 * US; at += 5 * US)
        if (measuring_allowed(&budget, &newcomers, at)) {
            measuring_spent(&budget, 4 * US);
            spent += 4 * US;
        }
    CHECK(spent >= 1950 * US && spent <= 2010 * US); /* of 100 ms */
    measuring_spent(&budget, UINT64_MAX);
    CHECK(!measuring_allowed(&budget, &newcomers, NOW + 100001 * US));
    measuring_is_free(&budget);
    CHECK(measuring_allowed(&budget, &newcomers, NOW + 100002 * US));
}

static void few_of_many_new_threads_measure_at_once(void) {
    uint64_t newcomers = 0;
    int measured = 0;
    for (int i = 0; i < 1000; i++) {
        struct measuring_budget thread = {0};
        measured += measuring_allowed(&thread, &newcomers, NOW + (uint64_t)i * 20 * US);
    }
    CHECK(measured >= 75 && measured <= 80); /* 20 ms, one in 250 us */
}

static void a_measured_span_lies_where_its_events_lie(void) {
    struct card_clock clock = {0};
    struct span_facts facts = {.idle = true, .launched_at = NOW, .lead_ns = 3 * US, .expected_ns = 100 * US};
    int64_t start = (int64_t)NOW - 3000 + OFFSET;
    struct gpu_interval ran = gpu_time_measured(&facts, start, 103000, 256, &clock);
    CHECK(clock.known && clock.offset_ns == OFFSET);
    CHECK(ran.from == start + 3000 && ran.to == start + 103000);           /* the record's lead is no work */
    ran = gpu_time_measured(&facts, start + 90 * 1000, 1000, 256, &clock); /* its thread stood still in between */
    CHECK(ran.to - ran.from == 1000 && clock.offset_ns == OFFSET);
    ran = gpu_time_measured(&facts, start, -5, 256, &clock);
    CHECK(ran.from == start && ran.to == start);
    facts.idle = false;
    facts.late_ns = 50 * US; /* between the last launch and the end's record */
    ran = gpu_time_measured(&facts, start, 130000, 256, &clock);
    CHECK(ran.to == start + 100000); /* as expected, which lies between */
    ran = gpu_time_measured(&facts, start, 130000, 512, &clock);
    CHECK(ran.to == start + 130000); /* two take turns: twice as long, but no longer than to the record */
    ran = gpu_time_measured(&facts, start, 300000, 256, &clock);
    CHECK(ran.to == start + 250000);
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

static void a_launchs_call_and_a_record_are_no_work(void) {
    struct card_clock clock = {0};
    struct span_facts facts = {
        .idle = true, .launched_at = NOW, .lead_ns = 1 * US, .call_ns = 3 * US, .stamp_ns = 1200};
    int64_t start = (int64_t)NOW - 1000 + OFFSET, over = 1000 + 3000 + 1600 + 1200;
    struct gpu_interval ran = gpu_time_measured(&facts, start, 10000 + over, 256, &clock);
    CHECK(clock.offset_ns == OFFSET && ran.to - ran.from == 10000);
    CHECK(ran.from == start + 5600 && ran.to == start + 15600);
    ran = gpu_time_measured(&facts, start, over, 256, &clock); /* no kernel is shorter than a microsecond */
    CHECK(ran.to - ran.from == 1000);
    facts.idle = false; /* it ran behind other work: the call was over before */
    ran = gpu_time_measured(&facts, start, 11200, 256, &clock);
    CHECK(ran.to - ran.from == 10000);
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

static void a_span_without_events_is_as_long_as_expected_and_over_when_its_stream_has_drained(void) {
    struct card_clock clock = {.offset_ns = OFFSET, .known = true};
    struct span_facts facts = {.launched_at = NOW, .expected_ns = 100 * US};
    int64_t launched = (int64_t)NOW + OFFSET;
    struct gpu_interval ran = gpu_time_expected(&facts, launched + 20000, 256, &clock);
    CHECK(ran.from == launched + 20000 && ran.to == launched + 120000); /* after what the stream ran before */
    facts.drained_by = NOW + 70 * US;
    ran = gpu_time_expected(&facts, launched + 20000, 256, &clock);
    CHECK(ran.to == launched + 70000);
    ran = gpu_time_expected(&facts, launched + 90000, 256, &clock);
    CHECK(ran.from == ran.to);
    facts = (struct span_facts){.idle = true, .launched_at = NOW, .expected_ns = 100 * US};
    ran = gpu_time_expected(&facts, launched + 20000, 512, &clock);
    CHECK(ran.from == launched && ran.to == launched + 200000);
}

static void small_work_shares_a_span_and_new_work_is_measured_alone(void) {
    struct span_facts facts = {.expected_ns = 15 * US};
    CHECK(span_plan_joins(&facts, false, 5 * US) && !span_plan_joins(&facts, false, 6 * US));
    CHECK(!span_plan_joins(&facts, true, 1));
    CHECK(span_plan_ends(&facts, true, true, 1, COST_FIRST - 1));
    CHECK(!span_plan_ends(&facts, true, true, 1, COST_FIRST));
    CHECK(span_plan_ends(&facts, true, true, SPAN_PLAN_LAUNCHES, COST_FIRST));
    facts.expected_ns = SPAN_PLAN_SOON_NS;
    CHECK(span_plan_ends(&facts, true, true, 2, COST_FIRST));
    CHECK(!span_plan_ends(&facts, true, false, 2, COST_FIRST));
    facts.expected_ns = SPAN_PLAN_NS;
    CHECK(span_plan_ends(&facts, false, false, 2, COST_FIRST));
    CHECK(span_plan_asks(STREAM_UNSURE, true, false) && span_plan_asks(STREAM_BUSY, false, false));
    CHECK(!span_plan_asks(STREAM_BUSY, true, false) && !span_plan_asks(STREAM_IDLE, false, false));
    CHECK(span_plan_asks(STREAM_IDLE, true, true) && !span_plan_asks(STREAM_BUSY, true, true)); /* beside others */
}

static void a_threads_own_stream_is_left_open_only_by_who_launches_fast(void) {
    uint64_t paid_until = 0, now = 60000000 * US;
    for (unsigned i = 0; i < SPAN_PLAN_OWN_MOST; i++)
        CHECK(span_plan_ends_own(&paid_until, now));
    CHECK(!span_plan_ends_own(&paid_until, now));
    CHECK(!span_plan_ends_own(&paid_until, now + SPAN_PLAN_OWN_NS - 1));
    CHECK(span_plan_ends_own(&paid_until, now + SPAN_PLAN_OWN_NS));
}

int main(void) {
    a_stream_is_busy_for_what_was_launched_and_idle_after_that();
    what_the_driver_says_of_a_stream_moves_its_end();
    a_stream_that_waits_is_idle_only_when_the_driver_says_so();
    measuring_takes_its_percentage_of_a_threads_time();
    few_of_many_new_threads_measure_at_once();
    a_measured_span_lies_where_its_events_lie();
    a_start_that_seems_late_moves_no_clock();
    a_launch_on_an_idle_stream_runs_once_it_has_reached_the_card();
    a_launch_behind_other_work_runs_from_its_start_event_on();
    a_held_launch_is_measured_exactly();
    a_launchs_call_and_a_record_are_no_work();
    a_launchs_call_takes_about_the_least_of_the_last();
    a_span_without_events_is_as_long_as_expected_and_over_when_its_stream_has_drained();
    small_work_shares_a_span_and_new_work_is_measured_alone();
    a_threads_own_stream_is_left_open_only_by_who_launches_fast();
    return checked();
}
