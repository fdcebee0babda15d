/* A modelled card: when does each submitted kernel run, and when is the card busy?
 *
 * Modelled, with where it is known from:
 *   - A stream runs its work in the order of submission (CUDA Programming Guide, "Streams").
 *   - Kernels of different streams may run at once (same, "Concurrent Kernel Execution"), which they do where each
 *     leaves room for others: SIDE_BY_SIDE. Kernels that fill the card follow one another: ONE_AT_A_TIME, here in the
 *     order of submission (a guess: the order among streams is not documented).
 *   - An event is done when all work submitted to its stream before cuEventRecord is done (Driver API,
 *     cuEventRecord); its time stamp has a resolution (cuEventElapsedTime: about 0.5 us; an H100: 32 ns).
 *   - Queries do not wait (cuEventQuery, cuStreamQuery).
 *   - A stream takes about a thousand launches that have not run; a further launch waits until one has (measured by a
 *     user on NVIDIA's forum, thread 68937: 1024 is the number commonly quoted).
 *   - A kernel on an idle stream starts `launch_latency_ns` after its submission, and the record of an event takes
 *     `record_ns` of its stream's time (see card_defaults). What stands behind a host function starts `resume_ns` after
 *     that has returned; that runs `host_function_ns` after its turn.
 *   - A kernel that waits for its stream begins `gap_ns` after what it waited for. Nobody else can use that pause, nor
 *     what a record takes: both count as the card's time, as the stand-in driver counts them.
 * Not modelled: copies, priorities, dependencies between streams.
 *
 * Streams are in order and submission takes equally long for all, so when a kernel runs is known once it is submitted.
 */
#ifndef VCUDA_REPLAY_CARD_H
#define VCUDA_REPLAY_CARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CARD_STREAMS 16
#define CARD_QUEUE 1024 /* launches that a stream holds before the next one waits */

enum overlap { ONE_AT_A_TIME, SIDE_BY_SIDE };

struct card_settings {
    enum overlap overlap;
    uint64_t launch_latency_ns; /* from submission to start, on an idle stream */
    uint64_t gap_ns;            /* before a kernel that waits behind other work or a record */
    uint64_t record_ns;         /* of the card, on its stream, for the record of an event */
    uint64_t stamp_ns;          /* resolution of an event's time stamp */
    uint64_t host_function_ns;  /* from a host function's turn until it runs */
    uint64_t resume_ns;         /* from its return until its stream goes on */
};

struct busy {
    uint64_t from, to;
};

struct stream {
    uint64_t idle_at;          /* when all that was submitted is done */
    uint64_t submitted;        /* kernels */
    uint64_t ends[CARD_QUEUE]; /* of the last kernels, by their number modulo CARD_QUEUE */
};

struct card {
    struct card_settings settings;
    struct stream stream[CARD_STREAMS];
    uint64_t idle_at;
    struct busy *busy; /* the union of all kernels' intervals, in order, never touching */
    size_t busy_count, busy_room;
    uint64_t busy_total_ns;
    uint64_t kernels_ns; /* the lengths of all kernels, whatever ran beside them */
};

struct card_settings card_defaults(void);
void card_begin(struct card *card, struct card_settings settings);
void card_end(struct card *card);

/* The earliest time at which `stream` takes one more launch. */
uint64_t card_takes_launch_at(const struct card *card, uint32_t stream);

/* Submit a kernel at `now`. Submissions come in the order of time. */
void card_submit_kernel(struct card *card, uint32_t stream, uint64_t length_ns, uint64_t now);

/* When an event recorded at `now` is done. */
uint64_t card_submit_event(struct card *card, uint32_t stream, uint64_t now);

/* When a host function submitted at `now` returns, which waits for the host until `ready`. */
uint64_t card_submit_host_function(struct card *card, uint32_t stream, uint64_t now, uint64_t ready);

/* The time stamp of an event that is done at `done_at`. */
uint64_t card_stamp(const struct card *card, uint64_t done_at);

/* A walk along the busy intervals. */
struct walk {
    size_t passed;       /* intervals that lie wholly before the time last asked for */
    uint64_t passed_sum; /* their length */
};

/* How long the card is busy before `until`, which is no earlier than in the last call of this walk. */
uint64_t card_walk_to(const struct card *card, struct walk *walk, uint64_t until);

/* The same for any time. */
uint64_t card_busy_before(const struct card *card, uint64_t until);

/* The greatest busy time in any window of this length, be it before the first kernel or after the last. */
uint64_t card_busiest_window(const struct card *card, uint64_t window_ns);

#endif
