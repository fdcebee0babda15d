#include "cuda/gpu_time.h"

#include "cuda/cost.h"

/* From a launch to its start on an idle card: some microseconds. */
#define LATENCY_NS 5000u
#define UNSURE_LEAST_NS 10000u
#define UNSURE_MOST_NS 500000u
#define BUDGET_MOST_NS 100000
#define BUDGET_FIRST_NS 1000 /* of a new thread: one span, so that threads of one launch are measured too, ... */
#define NEWCOMER_NS 250000u  /* ... one of them in so long: a span costs some microseconds */
/* However quickly a call returns, what it leaves the driver to do costs about so much. */
#define CALL_LEAST_NS 1000u

static uint64_t later(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

enum stream_state stream_clock_state(const struct stream_clock *clock, uint64_t now) {
    uint64_t run = clock->idle_at > clock->run_from ? clock->idle_at - clock->run_from : 0;
    if (clock->waits)
        return STREAM_UNSURE;
    uint64_t unsure = UNSURE_LEAST_NS + (run / 2 < UNSURE_MOST_NS ? run / 2 : UNSURE_MOST_NS);
    if (now >= clock->idle_at)
        return now - clock->idle_at >= unsure ? STREAM_IDLE : STREAM_UNSURE;
    return clock->idle_at - now > unsure ? STREAM_BUSY : STREAM_UNSURE;
}

void stream_clock_observed(struct stream_clock *clock, uint64_t now, bool drained) {
    clock->waits = clock->waits && !drained;
    if (drained && clock->idle_at > now)
        clock->idle_at = now;
    if (!drained && clock->idle_at + LATENCY_NS < now)
        clock->idle_at = now - LATENCY_NS;
}

void stream_clock_launched(struct stream_clock *clock, uint64_t now, bool idle, uint64_t expected_ns) {
    if (idle || clock->idle_at < clock->run_from) {
        clock->run_from = now;
        clock->idle_at = now + expected_ns;
    } else {
        clock->idle_at = later(clock->idle_at, now) + expected_ns;
    }
}

void stream_clock_corrected(struct stream_clock *clock, uint64_t expected_ns, uint64_t took_ns) {
    uint64_t end = clock->idle_at + took_ns;
    clock->idle_at = later(end > expected_ns ? end - expected_ns : 0, clock->run_from);
}

static bool is_given_first(uint64_t *newcomers, uint64_t now) {
    uint64_t last = __atomic_load_n(newcomers, __ATOMIC_RELAXED);
    return (now < last || now - last >= NEWCOMER_NS) &&
           __atomic_compare_exchange_n(newcomers, &last, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

bool measuring_allowed(struct measuring_budget *budget, uint64_t *newcomers, uint64_t now) {
    uint64_t passed = now > budget->at ? now - budget->at : 0;
    int64_t earned = (int64_t)(passed < UINT64_C(1000000000) ? passed : UINT64_C(1000000000)) * MEASURING_PERCENT / 100;
    if (budget->at)
        budget->left_ns += earned;
    else if (is_given_first(newcomers, now))
        budget->left_ns = BUDGET_FIRST_NS;
    if (budget->left_ns > BUDGET_MOST_NS)
        budget->left_ns = BUDGET_MOST_NS;
    budget->at = now;
    return budget->left_ns > 0;
}

void measuring_is_free(struct measuring_budget *budget) {
    budget->left_ns = BUDGET_MOST_NS;
}

void measuring_spent(struct measuring_budget *budget, uint64_t ns) {
    uint64_t cost = ns < CALL_LEAST_NS ? CALL_LEAST_NS : ns;
    budget->left_ns -= (int64_t)(cost < BUDGET_MOST_NS ? cost : BUDGET_MOST_NS);
}

/* A launch is on the card about half-way through its call, and its kernel starts so many thirds of a record's time
 * after that, less the record's own. Measured on two hosts with an H100 and an H200 and driver 580, whose calls
 * take 3.6 and 2.0 us and whose records take 1.25: kernels of 3 to 200 us seemed 4.8 and 4.0 us longer than they are.
 * Taking the end of the call instead charged a third host, with slower calls, for half of PyTorch's kernels. */
#define KERNEL_START_THIRDS 4
/* A kernel that has been waiting starts so many quarters of a record's time after the record in front of it: on an H100
 * a pair round one takes 2.2 to 2.3 us more than the kernel, where one round nothing takes 1.28. */
#define KERNEL_GAP_QUARTERS 3
/* What seems to take within so much of what its kind takes is that: calls vary by about as much. */
#define NEAR_NS 2000
/* No call is believed to take longer. */
#define LAUNCH_CALL_MOST_NS 8000u

uint64_t launch_call_ns(uint64_t known_ns, uint64_t took_ns) {
    uint64_t near = took_ns < 2 * known_ns ? took_ns : 2 * known_ns;
    uint64_t ns = !known_ns || took_ns < known_ns ? took_ns : known_ns + (near - known_ns) / 256;
    return ns < LAUNCH_CALL_MOST_NS ? ns : LAUNCH_CALL_MOST_NS;
}

uint64_t launch_reaches_ns(uint64_t known_ns, uint64_t took_ns, bool loads) {
    if (loads && took_ns > known_ns)
        return took_ns - known_ns / 2;
    return (took_ns < known_ns ? took_ns : known_ns) / 2;
}

static int64_t stretched(uint64_t ns, uint32_t stretch_q8) {
    return (int64_t)(ns * (stretch_q8 > 256 ? stretch_q8 : 256) / 256);
}

/* From the call of a launch until its kernel starts, where it was over `seemed` after that. */
static int64_t wait_of(const struct span_facts *facts, int64_t seemed, int64_t stamps) {
    int64_t guessed = (int64_t)(facts->call_ns + facts->stamp_ns * KERNEL_START_THIRDS / 3) + stamps;
    int64_t wait = facts->wait_ns ? (int64_t)facts->wait_ns : guessed, off = seemed - wait - (int64_t)facts->exact_ns;
    if (facts->exact_ns && facts->steady && off <= NEAR_NS + (int64_t)facts->slow_ns && off >= -NEAR_NS)
        wait += off;
    int64_t most = seemed - KERNEL_LEAST_NS;
    return wait > most ? most > 0 ? most : 0 : wait > 0 ? wait : 0;
}

void card_clock_seen(struct card_clock *clock, int64_t offset_ns, uint64_t now) {
    if (!clock->known) {
        *clock = (struct card_clock){offset_ns, true, {offset_ns, offset_ns}, now, 0};
    } else if (now > clock->since + CLOCK_EPOCH_NS && clock->looks >= CLOCK_EPOCH_LOOKS) {
        clock->least_ns[1] = clock->least_ns[0];
        clock->least_ns[0] = offset_ns;
        clock->since = now;
        clock->looks = 0;
    }
    clock->looks++;
    if (offset_ns < clock->least_ns[0])
        clock->least_ns[0] = offset_ns;
    clock->offset_ns = clock->least_ns[0] < clock->least_ns[1] ? clock->least_ns[0] : clock->least_ns[1];
}

struct gpu_interval gpu_time_measured(const struct span_facts *facts, int64_t start, int64_t elapsed,
                                      uint32_t stretch_q8, struct card_clock *clock) {
    int64_t stamp = (int64_t)facts->stamp_ns;
    int64_t to = start + (elapsed > stamp ? elapsed - stamp : 0), from = start;
    int64_t gap = facts->held ? stamp * KERNEL_GAP_QUARTERS / 4 : 0;
    from += gap < to - from ? gap : 0;
    int64_t called = from;
    /* The start's record and the first launch reached the card as far apart as they were made. If all was over sooner,
     * the thread had stood still before it recorded: then nothing is known but that it took no longer than that. */
    if (facts->idle && !facts->held && from + (int64_t)facts->lead_ns < to) {
        uint64_t recorded_at = facts->launched_at - facts->lead_ns;
        card_clock_seen(clock, start - (int64_t)recorded_at, recorded_at);
        called = start + (int64_t)facts->lead_ns;
        from = called + wait_of(facts, to - called, 0);
    }
    if (!facts->late_ns)
        return (struct gpu_interval){from, to, called, false};
    /* The end was recorded late: the truth lies between, near what was expected. */
    int64_t least = to - (int64_t)facts->late_ns > from ? to - (int64_t)facts->late_ns : from;
    int64_t expected = from + stretched(facts->expected_ns, stretch_q8);
    return (struct gpu_interval){from, expected < least ? least : expected < to ? expected : to, called, false};
}

/* A start that is reached so late stood behind other work. */
#define QUEUED_NS 2000

struct gpu_interval gpu_time_alone(const struct span_facts *facts, int64_t start, int64_t elapsed,
                                   struct card_clock *clock) {
    const int64_t stamp = (int64_t)facts->stamp_ns, lead = (int64_t)facts->lead_ns;
    const uint64_t recorded_at = facts->launched_at - facts->lead_ns;
    const int64_t to = start + (elapsed > stamp ? elapsed - stamp : 0);
    if (facts->held) {
        int64_t gap = stamp * KERNEL_GAP_QUARTERS / 4;
        return (struct gpu_interval){start + (gap < to - start ? gap : 0), to, start, false};
    }
    card_clock_seen(clock, start - (int64_t)recorded_at, recorded_at);
    int64_t late = start - (int64_t)recorded_at - clock->offset_ns, called = start - stamp + lead - late;
    int64_t from = called + (called < to ? wait_of(facts, to - called, stamp) : 0);
    bool queued = late > QUEUED_NS + (int64_t)facts->slow_ns;
    if (from < start || from >= to)
        from = start;
    return (struct gpu_interval){from, to, called, queued};
}

struct gpu_interval gpu_time_expected(const struct span_facts *facts, int64_t after, uint32_t stretch_q8,
                                      const struct card_clock *clock) {
    int64_t launched = (int64_t)facts->launched_at + clock->offset_ns;
    int64_t from = !facts->idle && after > launched ? after : launched;
    int64_t to = from + stretched(facts->expected_ns, stretch_q8);
    int64_t drained = (int64_t)facts->drained_by + clock->offset_ns;
    if (facts->drained_by && drained < to)
        to = drained > from ? drained : from;
    return (struct gpu_interval){from, to, launched, false};
}
