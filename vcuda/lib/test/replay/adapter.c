/* What throttle.c, timing_span.c and settle.c do around the driver, done around the modelled one. */
#include "adapter.h"

#include "cuda/admission.h"
#include "cuda/busy_intervals.h"
#include "cuda/cost.h"
#include "cuda/gpu_time.h"
#include "cuda/launch_wait.h"
#include "cuda/span_plan.h"
#include "token_bucket.h"

#define STREAMS 16
#define SPANS 256
#define KINDS 6
#define NONE UINT32_MAX
#define LATE_NS 20000u
#define LOAD_MOST_NS 20000000u
#define QUIET_NS 400000u
#define STAMPS 4
#define LOOK_LEAST_NS 150000u
#define LOOK_MOST_NS 1000000u

struct span {
    uint32_t next; /* of the same stream, closed after it; or the next free one */
    uint32_t start, end;
    struct span_facts facts;
    uint64_t paid_ns;
    struct cost *kind[KINDS]; /* of its launches */
    uint32_t kinds, launches;
    bool measured;
    uint64_t last_at, closed_at;
};

struct stream {
    struct stream_clock clock;
    uint32_t open, first, last;
    int64_t settled_to;
};

struct adapter {
    struct modelled_driver *driver;
    struct vcuda_limits_view view;
    struct vcuda_card_usage usage;
    struct window_cap cap;
    struct measuring_budget budget;
    uint64_t newcomers;
    struct card_clock clock;
    struct holding_budget holding;
    struct launch_wait wait;
    struct busy_intervals busy;
    uint64_t run; /* tells its kinds of work from those of other runs */
    struct stream stream[STREAMS];
    struct span span[SPANS];
    uint32_t free;
    uint32_t reference;
    int64_t reference_ns;
    bool has_reference;
    uint64_t ahead_ns, waiting_since, call_ns, stamp_ns;
    uint32_t stamps;
    bool stamp_is_exact;
    int64_t allowance_ns;
    uint32_t dice;
};

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
    a->dice = 1;
    for (uint32_t i = 0; i < STREAMS; i++)
        a->stream[i].open = a->stream[i].first = a->stream[i].last = NONE;
    for (uint32_t i = 0; i < SPANS; i++)
        a->span[i] = (struct span){i + 1 < SPANS ? i + 1 : NONE,
                                   driver_event_create(driver),
                                   driver_event_create(driver),
                                   {0},
                                   0,
                                   {0},
                                   0,
                                   0,
                                   false,
                                   0,
                                   0};
}

/* ---- spans --------------------------------------------------------------------------------------------------------
 */

static void push(struct adapter *a, struct stream *stream, struct span *span) {
    uint32_t index = (uint32_t)(span - a->span);
    span->next = NONE;
    span->closed_at = driver_now(a->driver);
    if (stream->first == NONE)
        stream->first = index;
    else
        a->span[stream->last].next = index;
    stream->last = index;
    stream->open = NONE;
    a->ahead_ns += span->paid_ns;
}

/* Close with a record of the end, or without where it was not measured. */
static void close_span(struct adapter *a, uint32_t number) {
    struct stream *stream = &a->stream[number];
    struct span *span = &a->span[stream->open];
    if (span->measured) {
        uint64_t now = driver_now(a->driver);
        uint64_t last_at = span->last_at;
        if (now > last_at + LATE_NS && driver_stream_query(a->driver, number))
            span->facts.late_ns = now - last_at;
        driver_event_record(a->driver, span->end, number);
        span->facts.ended_at = driver_now(a->driver);
        span->facts.slow_ns += span->facts.ended_at - now;
        measuring_spent(&a->budget, span->facts.ended_at - now);
    }
    push(a, stream, span);
}

static void drop_span(struct adapter *a, uint32_t number, uint64_t drained_by) {
    struct span *span = &a->span[a->stream[number].open];
    span->measured = false;
    span->facts.drained_by = drained_by;
    push(a, &a->stream[number], span);
}

/* ---- settling -----------------------------------------------------------------------------------------------------
 */

static int64_t ns_of(float milliseconds) {
    return (int64_t)((double)milliseconds * 1e6);
}

/* The next two as span_charge.c does. */
static bool look_at_wait(struct adapter *a, struct span *span) {
    struct span_facts *facts = &span->facts;
    if (facts->held) {
        holding_took(&a->holding, facts->held_until - (facts->launched_at - facts->lead_ns));
        return gpu_time_is_exact(facts);
    }
    if (facts->idle && span->launches == 1 && !facts->loads) {
        facts->wait_ns = launch_wait_ns(&a->wait);
        facts->exact_ns = exact_ns(span->kind[0], &facts->steady);
    }
    return true;
}

static void learn_wait(struct adapter *a, struct span *span, const struct gpu_interval *ran) {
    if (span->launches == 1 && span->facts.held)
        exact_told(span->kind[0], (uint64_t)(ran->to - ran->from));
    else if (span->facts.exact_ns)
        launch_wait_told(&a->wait, ran->to - ran->called, span->facts.exact_ns);
}

static bool read_span(struct adapter *a, struct span *span, struct gpu_interval *interval) {
    float elapsed = 0, from = 0;
    if (!a->has_reference) {
        a->reference_ns = (int64_t)span->facts.launched_at;
        a->has_reference = true;
        a->reference = span->start;
        span->start = driver_event_create(a->driver);
        if (!driver_event_elapsed(a->driver, a->reference, span->end, &elapsed) || !look_at_wait(a, span))
            return false;
        *interval = gpu_time_measured(&span->facts, a->reference_ns, ns_of(elapsed), 256, &a->clock);
        return true;
    }
    if (!driver_event_elapsed(a->driver, a->reference, span->start, &from) ||
        !driver_event_elapsed(a->driver, span->start, span->end, &elapsed) || !look_at_wait(a, span))
        return false;
    int64_t start = a->reference_ns + ns_of(from);
    *interval = gpu_time_measured(&span->facts, start, ns_of(elapsed), 256, &a->clock);
    if (start - a->reference_ns > 4000000000) {
        uint32_t old = a->reference;
        a->reference = span->start;
        a->reference_ns = start;
        span->start = old;
    }
    return true;
}

static void teach(const struct span *span, uint64_t own, uint64_t used) {
    if (span->kinds == 1)
        cost_measured(span->kind[0], own / span->launches, used / span->launches);
    else
        for (uint32_t i = 0; i < span->kinds; i++)
            cost_corrected(span->kind[i], own, used, span->facts.expected_ns);
}

static void settle(struct adapter *a, struct stream *stream, struct span *span) {
    struct gpu_interval interval;
    uint64_t expected = span->facts.expected_ns;
    bool measured = span->measured && read_span(a, span, &interval);
    if (!measured)
        interval = gpu_time_expected(&span->facts, stream->settled_to, 256, &a->clock);
    int64_t own = interval.to - interval.from;
    uint64_t used = (uint64_t)busy_intervals_add(&a->busy, interval.from, interval.to);
    if (measured && (int64_t)used >= own)
        learn_wait(a, span, &interval);
    if (measured) {
        teach(span, (uint64_t)own, used);
        stream_clock_corrected(&stream->clock, expected, (uint64_t)own);
        bucket_note_longest(&a->usage, (uint64_t)own / span->launches);
    }
    stream->settled_to = interval.to > stream->settled_to ? interval.to : stream->settled_to;
    a->ahead_ns -= span->paid_ns;
    bucket_settle(&a->usage, &a->view.card[0], used, span->paid_ns);
}

static bool is_finished(struct adapter *a, const struct span *span, uint64_t now) {
    if (span->measured)
        return driver_event_query(a->driver, span->end);
    return now >= span->closed_at + span->facts.expected_ns;
}

static void settle_finished(struct adapter *a, uint64_t now) {
    for (uint32_t i = 0; i < STREAMS; i++) {
        struct stream *stream = &a->stream[i];
        while (stream->first != NONE && is_finished(a, &a->span[stream->first], now)) {
            uint32_t index = stream->first;
            stream->first = a->span[index].next;
            settle(a, stream, &a->span[index]);
            a->span[index].next = a->free;
            a->free = index;
        }
    }
}

static void close_quiet(struct adapter *a, uint64_t now) {
    for (uint32_t i = 0; i < STREAMS; i++)
        if (a->stream[i].open != NONE && now > a->span[a->stream[i].open].last_at + QUIET_NS)
            close_span(a, i);
}

static uint64_t tick(void *state, uint64_t now) {
    struct adapter *a = state;
    bool working = false;
    close_quiet(a, now);
    settle_finished(a, now);
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
    return working ? next : NEVER;
}

/* ---- launches -----------------------------------------------------------------------------------------------------
 */

/* 0, or when to ask again. */
static uint64_t pay(struct adapter *a, uint32_t number, const struct cost *cost, uint64_t ns) {
    uint64_t now = driver_now(a->driver);
    bool known = cost_seen(cost) != 0;
    if (!a->waiting_since && known && a->allowance_ns >= (int64_t)ns) {
        a->allowance_ns -= (int64_t)ns;
        return 0;
    }
    uint64_t since = a->waiting_since ? a->waiting_since : now, taken;
    struct admission admission = {.usage = &a->usage,
                                  .view = &a->view,
                                  .cap = &a->cap,
                                  .ahead_ns = a->ahead_ns,
                                  .now = now,
                                  .waited_ns = now - since};
    uint64_t left = admission_room_ns(&admission);
    if (!left && a->allowance_ns >= (int64_t)ns) {
        a->allowance_ns -= (int64_t)ns;
    } else if (!left && !(left = admission_credit_ns(&admission, ns, &taken))) {
        a->allowance_ns += (int64_t)(taken - ns);
    }
    if (left && !admission_is_overdue(&admission)) {
        if (!a->waiting_since && a->stream[number].open != NONE)
            close_span(a, number);
        a->waiting_since = since;
        measuring_is_free(&a->budget);
        settle_finished(a, driver_now(a->driver));
        return driver_now(a->driver) + bucket_nap(left);
    }
    if (left)
        bucket_force(&a->usage, ns);
    a->waiting_since = 0;
    return 0;
}

/* What the record of an event takes on the card: two in a row on an idle stream, a few times, and once held. */
static uint64_t stamp_ns(struct adapter *a, const struct span *span, uint32_t number, bool hold) {
    float elapsed = 0;
    hold = hold && !a->stamp_is_exact;
    if (a->stamps >= STAMPS && !hold)
        return a->stamp_ns;
    if (hold)
        driver_host_function(a->driver, number);
    driver_event_record(a->driver, span->start, number);
    driver_event_record(a->driver, span->end, number);
    while (!driver_event_query(a->driver, span->end))
        ;
    driver_event_elapsed(a->driver, span->start, span->end, &elapsed);
    if (!(a->stamps + a->stamp_is_exact) || (uint64_t)ns_of(elapsed) < a->stamp_ns)
        a->stamp_ns = (uint64_t)ns_of(elapsed);
    a->stamps += !hold;
    a->stamp_is_exact |= hold;
    return a->stamp_ns;
}

static void take_span(struct adapter *a, uint32_t number, const struct cost *cost, uint64_t ns) {
    struct stream *stream = &a->stream[number];
    uint64_t now = driver_now(a->driver);
    struct span *span = stream->open == NONE ? NULL : &a->span[stream->open];
    if (span && span_plan_joins(&span->facts, span->measured, ns)) {
        stream_clock_launched(&stream->clock, now, false, ns);
        return;
    }
    bool may_ask = measuring_allowed(&a->budget, &a->newcomers, now) || cost_seen(cost) < COST_FIRST;
    enum stream_state said = stream_clock_state(&stream->clock, now);
    if (may_ask && span_plan_asks(said, span != NULL, false)) {
        bool drained = driver_stream_query(a->driver, number);
        stream_clock_observed(&stream->clock, now, drained);
        said = drained ? STREAM_IDLE : STREAM_BUSY;
        measuring_spent(&a->budget, driver_now(a->driver) - now);
    } else if (said == STREAM_UNSURE) {
        said = now >= stream->clock.idle_at ? STREAM_IDLE : STREAM_BUSY;
    }
    if (span && said == STREAM_IDLE) {
        drop_span(a, number, now);
        span = NULL;
    }
    if (!span && a->free != NONE) {
        stream->open = a->free;
        span = &a->span[a->free];
        a->free = span->next;
        span->launches = 0;
        span->paid_ns = 0;
        span->kinds = 0;
        span->measured = may_ask;
        bool idle = said == STREAM_IDLE,
             hold = may_ask && idle && holding_wanted(&a->holding, cost, driver_now(a->driver));
        uint64_t stamp = may_ask && idle ? stamp_ns(a, span, number, hold) : a->stamp_ns,
                 opened = driver_now(a->driver);
        span->facts = (struct span_facts){.idle = idle, .stamp_ns = stamp, .held = hold};
        if (span->facts.held)
            span->facts.held_until = driver_host_function(a->driver, number);
        if (span->measured) {
            driver_event_record(a->driver, span->start, number);
            measuring_spent(&a->budget, driver_now(a->driver) - opened);
        }
        span->facts.launched_at = driver_now(a->driver);
        span->facts.lead_ns = span->facts.launched_at - opened;
        driver_wake_helper(a->driver, span->facts.launched_at);
    }
    stream_clock_launched(&stream->clock, driver_now(a->driver), said == STREAM_IDLE, ns);
    stream->clock.waits |= span && span->facts.held;
}

static struct cost *cost_of(const struct adapter *a, const struct launch *launch) {
    return cost_find(cost_key((const void *)(uintptr_t)(a->run << 32 | launch->function), 1));
}

static void add(struct span *span, struct cost *cost, uint64_t ns, uint64_t charge) {
    uint32_t i = 0;
    span->facts.expected_ns += ns;
    span->paid_ns += charge;
    span->launches++;
    while (i < span->kinds && span->kind[i] != cost)
        i++;
    if (i == span->kinds && i < KINDS)
        span->kind[span->kinds++] = cost;
}

static uint64_t before_launch(void *state, const struct launch *launch, uint64_t now) {
    struct adapter *a = state;
    (void)now;
    struct cost *cost = cost_of(a, launch);
    uint64_t ns = cost_ns(cost), charge = cost_charge_ns(cost), again = pay(a, launch->stream, cost, charge);
    if (again)
        return again;
    take_span(a, launch->stream, cost, ns);
    if (a->stream[launch->stream].open != NONE)
        add(&a->span[a->stream[launch->stream].open], cost, ns, charge);
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
    if (span->facts.idle && span->measured && span->launches == 1) {
        uint64_t took = now - span->facts.launched_at;
        a->call_ns = launch_call_ns(a->call_ns, took);
        span->facts.slow_ns = took - a->call_ns;
        span->facts.loads = !cost_seen(span->kind[0]) && took < LOAD_MOST_NS;
        span->facts.call_ns = launch_reaches_ns(a->call_ns, took, span->facts.loads);
    }
    a->dice ^= a->dice << 13;
    a->dice ^= a->dice >> 17;
    a->dice ^= a->dice << 5;
    if (span_plan_ends(&span->facts, span->measured, a->budget.left_ns > 0, span->launches,
                       cost_seen(cost_of(a, launch))) ||
        (span->measured && !(a->dice & 31)))
        close_span(a, launch->stream);
}

static void before_synchronise(void *state, uint32_t stream, uint64_t now) {
    struct adapter *a = state;
    (void)now;
    for (uint32_t i = 0; i < STREAMS; i++)
        if ((stream == ALL_STREAMS || stream == i) && a->stream[i].open != NONE)
            close_span(a, i);
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
