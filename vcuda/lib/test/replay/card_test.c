/* The modelled card and driver against sentences of CUDA's documentation; prints what fails, ends with how many. */
#include "card.h"
#include "driver.h"

#include "../check.h"

#define US 1000u /* nanoseconds */
#define LATENCY (5 * US)

static struct card_settings settings(enum overlap overlap) {
    return (struct card_settings){.overlap = overlap, .launch_latency_ns = LATENCY, .stamp_ns = 500};
}

static void kernels_of_one_stream_follow_one_another(void) {
    struct card card;
    card_begin(&card, settings(SIDE_BY_SIDE));
    card_submit_kernel(&card, 0, 10 * US, 0);
    card_submit_kernel(&card, 0, 10 * US, 1 * US);
    CHECK(card.stream[0].idle_at == LATENCY + 20 * US);
    CHECK(card.busy_count == 1 && card.busy_total_ns == 20 * US);
    card_end(&card);
}

static void an_idle_stream_starts_after_the_launch_latency(void) {
    struct card card;
    card_begin(&card, settings(ONE_AT_A_TIME));
    card_submit_kernel(&card, 0, 10 * US, 0);
    card_submit_kernel(&card, 0, 10 * US, 100 * US);
    CHECK(card.busy_count == 2 && card.busy[1].from == 105 * US);
    CHECK(card_busy_before(&card, 110 * US) == 15 * US);
    card_end(&card);
}

static void streams_share_a_saturated_card_or_run_side_by_side(void) {
    struct card card;
    card_begin(&card, settings(ONE_AT_A_TIME));
    card_submit_kernel(&card, 0, 10 * US, 0);
    card_submit_kernel(&card, 1, 10 * US, 0);
    CHECK(card.stream[1].idle_at == LATENCY + 20 * US && card.busy_total_ns == 20 * US);
    card_end(&card);
    card_begin(&card, settings(SIDE_BY_SIDE));
    card_submit_kernel(&card, 0, 10 * US, 0);
    card_submit_kernel(&card, 1, 10 * US, 4 * US);
    CHECK(card.stream[1].idle_at == LATENCY + 14 * US);
    CHECK(card.busy_count == 1 && card.busy_total_ns == 14 * US && card.kernels_ns == 20 * US);
    card_end(&card);
}

static void busy_time_is_the_union_in_any_order(void) {
    static bool busy[4000];
    struct card card;
    uint64_t now = 0, random = 1, union_ns = 0;
    card_begin(&card, (struct card_settings){.overlap = SIDE_BY_SIDE, .launch_latency_ns = 0, .stamp_ns = 1});
    for (int i = 0; i < 300; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint32_t stream = (uint32_t)(random >> 33) % 5;
        uint64_t length = (random >> 40) % 30;
        now += (random >> 50) % 9;
        card_submit_kernel(&card, stream, length, now);
        for (uint64_t at = card.stream[stream].idle_at - length; at < card.stream[stream].idle_at; at++)
            busy[at] = true;
    }
    for (size_t at = 0; at < sizeof busy; at++) {
        union_ns += busy[at];
        CHECK(card_busy_before(&card, at + 1) == union_ns);
    }
    CHECK(card.busy_total_ns == union_ns);
    uint64_t most = 0;
    for (size_t from = 0; from + 100 <= sizeof busy; from++) {
        uint64_t inside = 0;
        for (size_t at = from; at < from + 100; at++)
            inside += busy[at];
        most = inside > most ? inside : most;
    }
    CHECK(card_busiest_window(&card, 100) == most);
    card_end(&card);
}

static void a_full_stream_takes_a_launch_when_its_oldest_ends(void) {
    struct card card;
    card_begin(&card, settings(ONE_AT_A_TIME));
    for (int i = 0; i < CARD_QUEUE; i++) {
        CHECK(card_takes_launch_at(&card, 0) == 0);
        card_submit_kernel(&card, 0, 10 * US, 0);
    }
    CHECK(card_takes_launch_at(&card, 0) == LATENCY + 10 * US);
    CHECK(card_takes_launch_at(&card, 1) == 0);
    card_end(&card);
}

static void an_event_is_done_when_all_earlier_work_of_its_stream_is(void) {
    struct modelled_driver driver;
    driver_begin(&driver, settings(SIDE_BY_SIDE), (struct host_settings){0});
    uint32_t first = driver_event_create(&driver), second = driver_event_create(&driver);
    float milliseconds = -1;
    CHECK(driver_event_query(&driver, first));
    CHECK(!driver_event_elapsed(&driver, first, second, &milliseconds));
    driver_event_record(&driver, first, 0);
    card_submit_kernel(&driver.card, 0, 100 * US, 0);
    card_submit_kernel(&driver.card, 1, 900 * US, 0);
    driver_event_record(&driver, second, 0);
    driver.now = LATENCY;
    CHECK(driver_event_query(&driver, first) && !driver_event_query(&driver, second));
    CHECK(!driver_event_elapsed(&driver, first, second, &milliseconds) && milliseconds < 0);
    CHECK(!driver_stream_query(&driver, 0));
    driver.now = LATENCY + 100 * US;
    CHECK(driver_event_elapsed(&driver, first, second, &milliseconds) &&
          milliseconds == (float)((LATENCY + 100 * US) / 1e6));
    CHECK(driver_stream_query(&driver, 0) && !driver_stream_query(&driver, 1));
    driver_event_record(&driver, first, 1);
    CHECK(!driver_event_query(&driver, first));
    driver_end(&driver);
}

static void elapsed_time_has_half_a_microsecond_and_the_digits_of_a_float(void) {
    struct modelled_driver driver;
    driver_begin(&driver, settings(ONE_AT_A_TIME), (struct host_settings){0});
    uint32_t origin = driver_event_create(&driver), start = driver_event_create(&driver),
             end = driver_event_create(&driver);
    driver_event_record(&driver, origin, 0);
    driver.now = 3600u * 1000000000ull + 123;
    driver_event_record(&driver, start, 0);
    card_submit_kernel(&driver.card, 0, 10 * US + 250, driver.now);
    driver_event_record(&driver, end, 0);
    driver.now += 100 * US;
    float near = 0, far_start = 0, far_end = 0;
    CHECK(driver_event_elapsed(&driver, start, end, &near) && near == (float)((LATENCY + 10 * US) / 1e6));
    CHECK(driver_event_elapsed(&driver, origin, start, &far_start));
    CHECK(driver_event_elapsed(&driver, origin, end, &far_end));
    CHECK(far_end - far_start == 0.0f); /* an hour in milliseconds: a float counts by quarters of one */
    driver_end(&driver);
}

static void a_kernel_between_two_records_seems_longer_by_its_start_and_a_record(void) {
    enum { RECORD = 1500 };
    struct modelled_driver driver;
    struct card_settings of = settings(ONE_AT_A_TIME);
    of.record_ns = RECORD;
    driver_begin(&driver, of, (struct host_settings){0});
    uint32_t first = driver_event_create(&driver), second = driver_event_create(&driver);
    float apart = 0;
    driver_event_record(&driver, first, 0);
    driver_event_record(&driver, second, 0);
    driver.now = 100 * US;
    CHECK(driver_event_elapsed(&driver, first, second, &apart) && apart == (float)(RECORD / 1e6));
    driver_event_record(&driver, first, 0);
    driver.now += RECORD;
    card_submit_kernel(&driver.card, 0, 10 * US, driver.now);
    driver_event_record(&driver, second, 0);
    driver.now += 100 * US;
    CHECK(driver_event_elapsed(&driver, first, second, &apart) && apart == (float)((LATENCY + 10 * US + RECORD) / 1e6));
    driver_end(&driver);
}

static void what_stands_behind_a_host_function_is_measured_alone(void) {
    struct modelled_driver driver;
    struct card_settings card = settings(ONE_AT_A_TIME);
    card.record_ns = 1250;
    card.gap_ns = 1 * US;
    card.stamp_ns = 50;
    card.host_function_ns = 40 * US;
    card.resume_ns = 5 * US;
    driver_begin(&driver, card,
                 (struct host_settings){.record_ns = 2 * US, .launch_ns = 8 * US, .host_function_ns = 4 * US});
    uint32_t first = driver_event_create(&driver), second = driver_event_create(&driver);
    float apart = 0;
    CHECK(driver_host_function(&driver, 0) == 44 * US); /* the calls behind it take 12 us: it need not wait */
    driver_event_record(&driver, first, 0);
    card_submit_kernel(&driver.card, 0, 10 * US, driver.now + 8 * US);
    driver.now += 8 * US;
    driver_event_record(&driver, second, 0);
    CHECK(!driver_stream_query(&driver, 0) && driver.card.busy[0].from == (44 + 5) * US);
    driver.now += 100 * US;
    CHECK(driver_event_elapsed(&driver, first, second, &apart) && apart == (float)(12250 / 1e6));
    driver.card.settings.host_function_ns = 1 * US;
    CHECK(driver_host_function(&driver, 0) == driver.now + 12 * US); /* it waits for them */
    driver_end(&driver);
}

static void calls_cost_the_launching_thread_alone(void) {
    struct modelled_driver driver;
    driver_begin(&driver, settings(ONE_AT_A_TIME), (struct host_settings){.record_ns = 7, .query_ns = 3});
    uint32_t event = driver_event_create(&driver);
    driver_event_record(&driver, event, 0);
    driver_event_query(&driver, event);
    CHECK(driver_now(&driver) == 10);
    driver.in_helper = true;
    driver_event_query(&driver, event);
    CHECK(driver_now(&driver) == 10);
    driver_end(&driver);
}

static void events_are_given_out_again(void) {
    struct modelled_driver driver;
    driver_begin(&driver, settings(ONE_AT_A_TIME), (struct host_settings){0});
    for (uint32_t i = 0; i < 100; i++)
        CHECK(driver_event_create(&driver) == i);
    driver_event_record(&driver, 40, 0);
    driver_event_destroy(&driver, 40);
    CHECK(driver_event_create(&driver) == 40 && driver_event_query(&driver, 40));
    CHECK(driver_event_create(&driver) == 100);
    driver_end(&driver);
}

int main(void) {
    kernels_of_one_stream_follow_one_another();
    an_idle_stream_starts_after_the_launch_latency();
    streams_share_a_saturated_card_or_run_side_by_side();
    busy_time_is_the_union_in_any_order();
    a_full_stream_takes_a_launch_when_its_oldest_ends();
    an_event_is_done_when_all_earlier_work_of_its_stream_is();
    elapsed_time_has_half_a_microsecond_and_the_digits_of_a_float();
    a_kernel_between_two_records_seems_longer_by_its_start_and_a_record();
    what_stands_behind_a_host_function_is_measured_alone();
    calls_cost_the_launching_thread_alone();
    events_are_given_out_again();
    return checked();
}
