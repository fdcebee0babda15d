/* The library's limiter for the replayer. Here: what throttle.c, payment.c and launch.c do around the driver, done
 * around the modelled one; adapter_span.c and adapter_settle.c have the rest. */
#include "adapter_state.h"

/* As they are named in timing_span.c, throttle.c, settle.c and settle.h. */
#define LOAD_MOST_NS 20000000u
#define QUIET_NS 400000u
#define LOOK_LEAST_NS 150000u
#define LOOK_MOST_NS 1000000u

static void begin(void *state, struct modelled_driver *driver, const struct limit *limit) {
    static uint64_t runs;
    struct adapter *a = state;
    a->driver = driver;
    a->view.card_count = 1;
    a->view.card[0] = (struct vcuda_card_limits){.core_limit_q8 = limit->percent * 256,
                                                 .burst_ns = 20000000,
                                                 .debt_ns = 200000000,
                                                 .window_ns = limit->window_ns,
                                                 .co_active_q8 = 256,
                                                 .gain_q8 = 256,
                                                 .mode = VCUDA_MODE_CORES_LIMITED};
    a->run = ++runs;
    for (uint32_t i = 0; i < STREAMS; i++)
        a->stream[i].open = a->stream[i].first = a->stream[i].last = NONE;
    for (uint32_t i = 0; i < SPANS; i++)
        a->span[i] = (struct span){.next = i + 1 < SPANS ? i + 1 : NONE,
                                   .start = driver_event_create(driver),
                                   .end = driver_event_create(driver)};
}

static void close_quiet(struct adapter *a, uint64_t now) {
    for (uint32_t i = 0; i < STREAMS; i++)
        if (a->stream[i].open != NONE && now > a->span[a->stream[i].open].last_at + QUIET_NS)
            adapter_close_span(a, i);
}

static uint64_t tick(void *state, uint64_t now) {
    struct adapter *a = state;
    bool working = false;
    measuring_window_turn(&a->window, now);
    close_quiet(a, now);
    adapter_settle_finished(a, now);
    uint64_t next = now + LOOK_MOST_NS;
    for (uint32_t i = 0; i < STREAMS; i++) {
        const struct stream *stream = &a->stream[i];
        working |= stream->open != NONE || stream->first != NONE;
        if (stream->first != NONE) {
            uint64_t due = a->span[stream->first].closed_at + a->span[stream->first].facts.expected_ns;
            due = due > now + LOOK_LEAST_NS ? due : now + LOOK_LEAST_NS;
            next = due < next ? due : next;
        }
    }
    return working || known_busy_waits(&a->known) ? next : NEVER;
}

/* 0, or when to ask again. */
static uint64_t pay(struct adapter *a, uint32_t number, const struct cost *cost, uint64_t ns) {
    uint64_t now = driver_now(a->driver);
    bool known = cost_seen(cost) != 0;
    if (!a->waiting_since && known && a->allowance_ns >= (int64_t)ns) {
        a->allowance_ns -= (int64_t)ns;
        return 0;
    }
    uint64_t since = a->waiting_since ? a->waiting_since : now, taken;
    struct credit credit = {.usage = &a->usage,
                            .view = &a->view,
                            .cap = &a->cap,
                            .ahead_ns = a->ahead_ns,
                            .now = now,
                            .waited_ns = now - since};
    uint64_t left = credit_room_ns(&credit);
    if (!left && a->allowance_ns >= (int64_t)ns) {
        a->allowance_ns -= (int64_t)ns;
    } else if (!left && !(left = credit_take_ns(&credit, ns, &taken))) {
        a->allowance_ns += (int64_t)(taken - ns);
    }
    if (left && !credit_is_overdue(&credit)) {
        if (!a->waiting_since && a->stream[number].open != NONE) {
            a->stream[number].marked_at = 0;
            adapter_close_span(a, number);
        }
        a->waiting_since = since;
        adapter_settle_finished(a, driver_now(a->driver));
        return driver_now(a->driver) + bucket_nap(left);
    }
    if (left)
        bucket_force(&a->usage, ns);
    a->waiting_since = 0;
    return 0;
}

static struct cost *cost_of(const struct adapter *a, const struct launch *launch) {
    return cost_find(cost_key((const void *)(uintptr_t)(a->run << 32 | launch->function), 1));
}

static void add(struct span *span, uint64_t ns, uint64_t charge) {
    span->facts.expected_ns += ns;
    span->paid_ns += charge;
    span->launches++;
}

static uint64_t before_launch(void *state, const struct launch *launch, uint64_t now) {
    struct adapter *a = state;
    (void)now;
    struct cost *cost = cost_of(a, launch);
    uint64_t ns = cost_ns(cost), charge = cost_charge_ns(cost), again = pay(a, launch->stream, cost, charge);
    if (again)
        return again;
    adapter_take_span(a, launch->stream, cost);
    if (a->stream[launch->stream].open != NONE)
        add(&a->span[a->stream[launch->stream].open], ns, charge);
    else
        a->usage.busy_ns += charge;
    return 0;
}

static void after_launch(void *state, const struct launch *launch, uint64_t now) {
    struct adapter *a = state;
    struct stream *stream = &a->stream[launch->stream];
    if (stream->open == NONE)
        return;
    struct span *span = &a->span[stream->open];
    span->last_at = now;
    if (span->measured) {
        uint64_t took = now - span->facts.launched_at;
        a->call_ns = launch_call_ns(a->call_ns, took);
        span->facts.slow_ns = took - a->call_ns;
        span->facts.loads = !cost_seen(span->cost) && took < LOAD_MOST_NS;
        span->facts.call_ns = launch_reaches_ns(a->call_ns, took, span->facts.loads);
    }
    if (span->measured || span_plan_is_full(span->facts.expected_ns, span->launches))
        adapter_close_span(a, launch->stream);
}

static void before_synchronise(void *state, uint32_t stream, uint64_t now) {
    struct adapter *a = state;
    (void)now;
    for (uint32_t i = 0; i < STREAMS; i++)
        if ((stream == ALL_STREAMS || stream == i) && a->stream[i].open != NONE)
            adapter_close_span(a, i);
}

static uint64_t accounted_ns(const void *state) {
    return ((const struct adapter *)state)->usage.busy_ns;
}

const struct limiter limiter_libvcuda = {.name = "libvcuda",
                                         .state_bytes = sizeof(struct adapter),
                                         .begin = begin,
                                         .before_launch = before_launch,
                                         .after_launch = after_launch,
                                         .before_synchronise = before_synchronise,
                                         .tick = tick,
                                         .accounted_ns = accounted_ns};
