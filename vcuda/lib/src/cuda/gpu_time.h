/* GPU time from what a host can see: when it launched, and what events measured.
 *
 * Arithmetic alone: no driver is called here and no clock is read, so that recorded and made-up traces can be played
 * through it. All times are nanoseconds. Host times are of one monotonic clock; card times are of another one, the
 * timeline of a context's events, and lie a nearly constant offset from the host's (card_clock below).
 */
#ifndef VCUDA_GPU_TIME_H
#define VCUDA_GPU_TIME_H

#include <stdbool.h>
#include <stdint.h>

/* ---- streams ------------------------------------------------------------------------------------------------------
 */

/* What is expected of a stream, without asking the driver. Host times. */
struct stream_clock {
    uint64_t idle_at;  /* when all that was launched should be done */
    uint64_t run_from; /* the first launch since it was idle last */
    bool waits;        /* something stands in it that is no work, for who knows how long */
};

/* Work of this expected length was launched at `now`; on an idle stream it begins a new run. */
void stream_clock_launched(struct stream_clock *clock, uint64_t now, bool idle, uint64_t expected_ns);

/* Work of the present run was measured: what is expected of the rest moves by as much. */
void stream_clock_corrected(struct stream_clock *clock, uint64_t expected_ns, uint64_t took_ns);

/* How long a launch call is known to take the host, with one more that took `took_ns`: about the least of the last few
 * hundred, since what is longer was a thread that stood still. */
uint64_t launch_call_ns(uint64_t known_ns, uint64_t took_ns);

/* Host time from the call of a launch that took `took_ns` until it is on the card; one that `loads` its function's code
 * is there only when that is done. */
uint64_t launch_reaches_ns(uint64_t known_ns, uint64_t took_ns, bool loads);

/* ---- spans --------------------------------------------------------------------------------------------------------
 */

/* The card's time less the host's: the least of what the starts on idle streams showed lately. A start can only seem
 * late, for a stream that waits for another one (the legacy stream, an event) or a thread that was stopped. */
#define CLOCK_EPOCH_NS 100000000u
#define CLOCK_EPOCH_LOOKS 16u /* an epoch has at least so many: the clocks part by some microseconds in it */
struct card_clock {
    int64_t offset_ns;
    bool known;
    int64_t least_ns[2]; /* of the present epoch, and of the one before */
    uint64_t since;      /* host time at which the present epoch began */
    uint32_t looks;
};

/* A start on an idle stream that the host made at `now` was seen `offset_ns` later on the card's clock. */
void card_clock_seen(struct card_clock *clock, int64_t offset_ns, uint64_t now);

/* A stretch of launches on one stream. Host times. */
struct span_facts {
    uint64_t launched_at; /* the first launch */
    uint64_t lead_ns;     /* host time from the start's record to the first launch */
    uint64_t call_ns;     /* host time from the first launch's call until it is on the card, as a guess */
    uint64_t wait_ns;     /* from there until its kernel starts, as is known of others (launch_wait.h); 0: it is not */
    uint64_t slow_ns;     /* by so much its calls took longer than such calls do: it may seem as much longer */
    uint64_t exact_ns;    /* what it takes on average, as is known of those that were held; 0: it is not */
    bool steady;          /* and each about that */
    bool loads;           /* its first launch may have loaded its function's code */
    bool held;            /* it stands behind a host function that waits a little for its end, ... */
    uint64_t held_until;  /* ... which returned at this time; 0: not yet */
    uint64_t ended_at;    /* its end had been recorded */
    uint64_t stamp_ns;    /* card time that the end's record takes */
    uint64_t expected_ns; /* by what its launches cost before, undivided by what else runs on the card */
};

struct gpu_interval {
    int64_t from, to; /* card times */
    int64_t called;   /* its first launch, where its stream was idle */
    bool waited;      /* its stream was busy when it was launched: nothing is known of how long launches wait */
};

/* The interval of one launch that was measured by itself: its start event lies at `start` of the card's time, its end
 * event `elapsed` later. The start event tells whether the stream was busy before: it is reached late then, by more
 * than the launch took to reach the card. */
struct gpu_interval gpu_time_alone(const struct span_facts *facts, int64_t start, int64_t elapsed,
                                   struct card_clock *clock);

/* Of a span that was held: was all of it in its stream before this went on? If not, its events say nothing. */
static inline bool gpu_time_is_exact(const struct span_facts *facts) {
    return facts->ended_at && facts->ended_at <= facts->held_until;
}

/* The interval of a span whose launches were not measured: as long as they are expected to take, after what their
 * stream ran before (`after`). `stretch_q8` / 256 is by how much others on the card stretch the work. */
struct gpu_interval gpu_time_expected(const struct span_facts *facts, int64_t after, uint32_t stretch_q8,
                                      const struct card_clock *clock);

#endif
