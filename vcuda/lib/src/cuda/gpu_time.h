/* Computes GPU time from what a host can observe: when it launched, and what events measured.
 *
 * Arithmetic only: no function calls the driver or reads a clock, so recorded and synthetic traces can be replayed. All
 * times are ns. Host times are of one monotonic clock. Card times are of the timeline of a context's events, at a
 * nearly constant offset from the host's clock (card_clock below). */
#ifndef VCUDA_GPU_TIME_H
#define VCUDA_GPU_TIME_H

#include <stdbool.h>
#include <stdint.h>

/* ---- streams ------------------------------------------------------------------------------------------------------
 */

/* The expected state of a stream, kept without calling the driver. Host times. */
struct stream_clock {
    uint64_t idle_at;  /* when all launched work should have ended */
    uint64_t run_from; /* the first launch since the stream was last idle */
    bool waits;        /* the stream contains something other than work, of unknown duration */
};

/* Work of this expected duration was launched at `now`; on an idle stream it begins a new run. */
void stream_clock_launched(struct stream_clock *clock, uint64_t now, bool idle, uint64_t expected_ns);

/* Work of the present run was measured: shifts the expected end by the difference. */
void stream_clock_corrected(struct stream_clock *clock, uint64_t expected_ns, uint64_t took_ns);

/* How long a launch call takes the host, updated with one more that took `took_ns`: about the minimum of the last few
 * hundred, since longer calls were preempted. */
uint64_t launch_call_ns(uint64_t known_ns, uint64_t took_ns);

/* Host time from the call of a launch that took `took_ns` until the launch is on the card. If it `loads` its function's
 * code, it reaches the card only after loading. */
uint64_t launch_reaches_ns(uint64_t known_ns, uint64_t took_ns, bool loads);

/* ---- spans --------------------------------------------------------------------------------------------------------
 */

/* The card's clock minus the host's: the minimum observed recently at starts on idle streams. A start can only appear
 * late: the stream waited for another one (the legacy stream, an event), the card ran another process, or the thread
 * was preempted. Where every start of an epoch is late the minimum is too high, so the offset rises no faster than
 * clocks drift apart. A jump, as after a suspended virtual machine, is accepted. */
#define CLOCK_EPOCH_NS 100000000u
#define CLOCK_EPOCH_LOOKS                                                                                              \
    16u /* observations per epoch, at least: in one epoch the clocks drift apart by some microseconds */
#define CLOCK_DRIFT_PARTS 10000 /* two clocks of 50 parts in a million each */
#define CLOCK_JUMP_NS 1000000000
struct card_clock {
    int64_t offset_ns;
    bool known;
    int64_t least_ns[2]; /* of the present epoch and of the previous one */
    uint64_t since;      /* host time at which the present epoch began */
    uint32_t looks;
    uint64_t at; /* host time of the latest observation */
};

/* A start on an idle stream, made by the host at `now`, was observed `offset_ns` later on the card's clock. */
void card_clock_seen(struct card_clock *clock, int64_t offset_ns, uint64_t now);

/* Facts about a sequence of launches on one stream. Host times. */
struct span_facts {
    uint64_t launched_at; /* the first launch */
    uint64_t lead_ns;     /* host time from the start's record to the first launch */
    uint64_t call_ns;     /* host time from the first launch's call until it is on the card, estimated */
    uint64_t
        wait_ns; /* from there until its kernel starts, estimated from other launches (launch_wait.h); 0: unknown */
    uint64_t slow_ns;     /* by how much its calls took longer than usual; the span may appear longer by as much */
    uint64_t exact_ns;    /* average duration of such launches, measured with the stream held; 0: unknown */
    bool steady;          /* each launch of the kind takes about `exact_ns` */
    bool loads;           /* its first launch may have loaded its function's code */
    bool held;            /* it is behind a host function that waits briefly for its end to be recorded, ... */
    uint64_t held_until;  /* ... and that returned at this time; 0: not yet */
    uint64_t ended_at;    /* when its end had been recorded */
    uint64_t stamp_ns;    /* card time that recording the end takes */
    uint64_t expected_ns; /* expected duration of its launches by the table of costs; not divided for other load on the
                             card */
};

struct gpu_interval {
    int64_t from, to; /* card times */
    int64_t called;   /* card time of the first launch's call, where its stream was idle */
    bool waited;      /* its stream was busy when it was launched, so it shows nothing about launch latency */
};

/* The interval of one launch that was measured by itself: its start event is at `start` of the card's time, its end
 * event `elapsed` later. A start event that is reached later than the launch takes to reach the card shows that the
 * stream was busy. */
struct gpu_interval gpu_time_alone(const struct span_facts *facts, int64_t start, int64_t elapsed,
                                   struct card_clock *clock);

/* For a span whose stream was held: true if all of it was in the stream before the stream was released. If not, its
 * events are not exact. */
static inline bool gpu_time_is_exact(const struct span_facts *facts) {
    return facts->ended_at && facts->ended_at <= facts->held_until;
}

/* The interval of a span whose launches were not measured: of their expected duration, after the earlier work of the
 * stream (`after`). `stretch_q8` / 256 is the factor by which other work on the card stretches it. */
struct gpu_interval gpu_time_expected(const struct span_facts *facts, int64_t after, uint32_t stretch_q8,
                                      const struct card_clock *clock);

#endif
