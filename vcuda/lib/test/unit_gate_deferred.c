/* Launches that wait at a gate by themselves, with a driver that notes what it is to call: each check prints a line if
 * it fails; the program's answer is how many did. Without pages nothing is waited for: a host function that is called
 * returns at once. */
#include "cuda/gate_deferred.h"

#include "interposer.h"

#include "check.h"

#define LAUNCH_NS UINT64_C(1000)

static void (*called)(void *);
static void *data;
static CUresult answer;

static CUresult note(CUstream stream, void *function, void *argument) {
    (void)stream;
    called = (void (*)(void *))function;
    data = argument;
    return answer;
}

static struct context_meter context_meter = {.owner = 7};
static struct stream_meter meter = {.stream = (CUstream)64, .context_meter = &context_meter};
static struct vcuda_card_limits limits = {.window_ns = 1000000000, .core_limit_q8 = 256};
static struct vcuda_card_usage usage;

static bool defer(void) {
    struct gate_look look = {.limits = &limits, .usage = &usage, .launch_ns = LAUNCH_NS};
    gate_launch_comes(&look);
    bool is_deferred = gate_defer(&meter, &look);
    if (!is_deferred)
        gate_launch_goes(&look);
    return is_deferred;
}

static void it_is_not_in_flight_until_the_driver_has_called(void) {
    CHECK(defer() && gate_deferred_ns(0) == LAUNCH_NS);
    gate_deferred_tend();
    CHECK(gate_deferred_ns(0) == LAUNCH_NS, "its context is well");
    called(data);
    CHECK(gate_deferred_ns(0) == 0);
}

static void what_the_driver_refuses_is_the_callers(void) {
    answer = 719;
    CHECK(!defer() && gate_deferred_ns(0) == 0);
    answer = 0;
}

static void nothing_is_put_on_a_stream_while_one_is_captured(void) {
    meter_captures = 1;
    CHECK(!defer() && gate_deferred_ns(0) == 0);
    meter_captures = 0;
}

/* The driver calls no host function of a context in error, or does so late. */
static void what_waits_in_a_context_that_is_over_waits_no_more(bool *lost, uint64_t *owner) {
    CHECK(defer() && gate_deferred_ns(0) == LAUNCH_NS);
    void *old = data;
    *lost = lost == &context_meter.lost;
    *owner += owner == &context_meter.owner;
    gate_deferred_tend();
    CHECK(gate_deferred_ns(0) == 0);
    context_meter.lost = false;
    CHECK(defer() && data != old);
    called(old);
    CHECK(gate_deferred_ns(0) == LAUNCH_NS, "who comes late is not the next one");
    called(data);
    CHECK(gate_deferred_ns(0) == 0);
}

static void there_are_so_many_at_a_time(void) {
    void *all[GATE_TICKETS];
    for (int i = 0; i < GATE_TICKETS; i++) {
        CHECK(defer());
        all[i] = data;
    }
    CHECK(!defer() && gate_deferred_ns(0) == GATE_TICKETS * LAUNCH_NS);
    for (int i = 0; i < GATE_TICKETS; i++)
        called(all[i]);
    CHECK(gate_deferred_ns(0) == 0 && defer());
    called(data);
}

int main(void) {
    bool no_error;
    uint64_t no_owner = 0;
    real.cuLaunchHostFunc = note;
    it_is_not_in_flight_until_the_driver_has_called();
    what_the_driver_refuses_is_the_callers();
    nothing_is_put_on_a_stream_while_one_is_captured();
    what_waits_in_a_context_that_is_over_waits_no_more(&context_meter.lost, &no_owner);
    what_waits_in_a_context_that_is_over_waits_no_more(&no_error, &context_meter.owner);
    there_are_so_many_at_a_time();
    return checked();
}
