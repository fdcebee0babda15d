/* The seam between the replayer and the limiter that it judges.
 *
 * A limiter fills `struct limiter` and calls the `driver_` functions below. All times are modelled nanoseconds since
 * the program began. One thread calls everything: no callback runs while another one does.
 *
 * How the replayer calls a limiter, for each launch of the modelled program:
 *
 *   at = before_launch(...)      until it returns 0; the host sleeps until `at`, and wakes late as a real thread does
 *   the kernel is submitted
 *   after_launch(...)
 *
 * and tick() from a helper thread of its own, at the time that the last tick() asked for.
 */
#ifndef VCUDA_LIMITER_UNDER_TEST_H
#define VCUDA_LIMITER_UNDER_TEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NEVER UINT64_MAX       /* as a time: not before driver_wake_helper() */
#define ALL_STREAMS UINT32_MAX /* as a stream: cuCtxSynchronize */

/* The driver as the limiter sees it: what CUDA's driver API offers, and nothing that it does not tell. */
struct modelled_driver;

/* The host's clock, as clock_gettime(CLOCK_MONOTONIC) in the calling thread. Driver calls that a launch makes advance
 * it; the helper's do not, for they run beside the program. */
uint64_t driver_now(const struct modelled_driver *driver);

/* cuEventCreate. Events are numbers from 0 on, given out again after driver_event_destroy(). */
uint32_t driver_event_create(struct modelled_driver *driver);
void driver_event_destroy(struct modelled_driver *driver, uint32_t event);

/* cuEventRecord: the event captures the work submitted to `stream` so far. A second record replaces the first. */
void driver_event_record(struct modelled_driver *driver, uint32_t event, uint32_t stream);

/* cuEventQuery: whether everything the event captured is done. An event never recorded is done. */
bool driver_event_query(struct modelled_driver *driver, uint32_t event);

/* cuEventElapsedTime: false where it would not return CUDA_SUCCESS (never recorded, or not yet done). A float, as in
 * CUDA: far from its start event the milliseconds have few digits left. */
bool driver_event_elapsed(struct modelled_driver *driver, uint32_t start, uint32_t end, float *milliseconds);

/* cuStreamQuery: whether all work submitted to `stream` is done. */
bool driver_stream_query(struct modelled_driver *driver, uint32_t stream);

/* cuLaunchHostFunc of a function that waits until this thread has recorded an event, launched and recorded another one.
 * When it returns is returned here; a limiter uses that once the time has come. */
uint64_t driver_host_function(struct modelled_driver *driver, uint32_t stream);

/* Have tick() called at `at`, if that is sooner than the time it asked for. */
void driver_wake_helper(struct modelled_driver *driver, uint64_t at);

struct limit {
    uint32_t percent;   /* of the card's time, 1..100 */
    uint32_t streams;   /* that the program will use, numbered from 0 */
    uint64_t window_ns; /* in any window of this length the card's time stays below the limit */
};

struct launch {
    uint32_t stream;
    uint64_t function; /* what a CUfunction and its grid tell apart; equal for kernels of one kind */
};

struct limiter {
    const char *name;
    size_t state_bytes; /* zeroed before begin() */
    void (*begin)(void *state, struct modelled_driver *driver, const struct limit *limit);

    /* 0: launch now. Otherwise the time, later than now, at which to ask again. May record events. */
    uint64_t (*before_launch)(void *state, const struct launch *launch, uint64_t now);
    void (*after_launch)(void *state, const struct launch *launch, uint64_t now);

    /* The program's own cuStreamSynchronize, or cuCtxSynchronize (ALL_STREAMS), is about to be made, and has returned.
     * NULL: not hooked. */
    void (*before_synchronise)(void *state, uint32_t stream, uint64_t now);
    void (*after_synchronise)(void *state, uint32_t stream, uint64_t now);

    /* The helper thread's turn; returns when it wants the next one. First called at 0. NULL: no helper. */
    uint64_t (*tick)(void *state, uint64_t now);

    /* GPU time that the limiter says the program has used: what the usage page would show as busy. */
    uint64_t (*accounted_ns)(const void *state);

    void (*end)(void *state); /* NULL: nothing to give back */
};

/* A program of the replayer's makes this list; a limiter is found by its name. */
extern const struct limiter *const limiters[];
extern const size_t limiters_count;

#endif
