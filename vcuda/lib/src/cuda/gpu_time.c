#include "cuda/gpu_time.h"

#include "cuda/cost.h"

static uint64_t later(uint64_t a, uint64_t b) {
    return a > b ? a : b;
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
static int64_t wait_of(const struct span_facts *facts, int64_t seemed) {
    int64_t guessed = (int64_t)(facts->call_ns + facts->stamp_ns * KERNEL_START_THIRDS / 3 + facts->stamp_ns);
    int64_t wait = facts->wait_ns ? (int64_t)facts->wait_ns : guessed, off = seemed - wait - (int64_t)facts->exact_ns;
    if (facts->exact_ns && facts->steady && off <= NEAR_NS + (int64_t)facts->slow_ns && off >= -NEAR_NS)
        wait += off;
    int64_t most = seemed - KERNEL_LEAST_NS;
    return wait > most ? most > 0 ? most : 0 : wait > 0 ? wait : 0;
}

void card_clock_seen(struct card_clock *clock, int64_t offset_ns, uint64_t now) {
    if (!clock->known) {
        *clock = (struct card_clock){offset_ns, true, {offset_ns, offset_ns}, now, 0, now};
    } else if (now > clock->since + CLOCK_EPOCH_NS && clock->looks >= CLOCK_EPOCH_LOOKS) {
        clock->least_ns[1] = clock->least_ns[0];
        clock->least_ns[0] = offset_ns;
        clock->since = now;
        clock->looks = 0;
    }
    clock->looks++;
    if (offset_ns < clock->least_ns[0])
        clock->least_ns[0] = offset_ns;
    int64_t least = clock->least_ns[0] < clock->least_ns[1] ? clock->least_ns[0] : clock->least_ns[1];
    int64_t most = clock->offset_ns + (now > clock->at ? (int64_t)(now - clock->at) / CLOCK_DRIFT_PARTS : 0);
    clock->at = now > clock->at ? now : clock->at;
    clock->offset_ns = least < most || least > most + CLOCK_JUMP_NS ? least : most;
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
    int64_t from = called + (called < to ? wait_of(facts, to - called) : 0);
    bool queued = late > QUEUED_NS + (int64_t)facts->slow_ns;
    if (from < start || from >= to)
        from = start;
    return (struct gpu_interval){from, to, called, queued};
}

struct gpu_interval gpu_time_expected(const struct span_facts *facts, int64_t after, uint32_t stretch_q8,
                                      const struct card_clock *clock) {
    int64_t launched = (int64_t)facts->launched_at + clock->offset_ns, from = after > launched ? after : launched;
    return (struct gpu_interval){from, from + stretched(facts->expected_ns, stretch_q8), launched, false};
}
