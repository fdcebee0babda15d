/* Measures how long short kernels take exactly, and how long a launch waits for the card.
 *
 * A pair of events around a launch on an idle stream also measures the launch's way to the card, which takes as long as
 * the kernels of many programs and differs between hosts. If start event, launch and end event are all in the stream
 * before the card reaches the first of them, the pair measures the kernel alone. So a few launches of each short
 * kernel, and then one now and then, are held: their stream waits for a host function, which waits, briefly, until the
 * end event has been recorded. The launch wait is the difference between the duration of the same kernels without and
 * with holding.
 *
 * Arithmetic only, as in gpu_time.h. */
#ifndef VCUDA_LAUNCH_WAIT_H
#define VCUDA_LAUNCH_WAIT_H

#include "cuda/cost.h"

#include <stdbool.h>
#include <stdint.h>

/* Streams are held for at most this part of a process's time. */
#define HOLDING_PERMILLE 5

/* May be used from any thread. */
struct holding_budget {
    uint64_t at;
    int64_t left_ns;
};

/* True if a launch of this kind should be held now; this spends the expected duration of holding. */
bool holding_wanted(struct holding_budget *budget, const struct cost *cost, uint64_t now);

/* The host function returned `ns` after it was requested. */
void holding_took(struct holding_budget *budget, uint64_t ns);

/* A launch of this kind took exactly `ns`. Settling thread only. */
void exact_told(const struct cost *cost, uint64_t ns);

/* Average exact duration of launches of this kind; 0: unknown. `steady`: each takes about that. */
uint64_t exact_ns(const struct cost *cost, bool *steady);

/* Launch wait on the idle streams of a context. Settling thread only. */
struct launch_wait {
    double ns, off;   /* the average, and the average distance from it */
    double kernel_ns; /* average duration of the kernels observed */
    uint32_t told;
};

/* A launch that was not held ended `seemed_ns` after its call; `exact` is the exact duration of its kind. */
void launch_wait_told(struct launch_wait *wait, int64_t seemed_ns, uint64_t exact);

/* The average wait; 0: unknown. */
uint64_t launch_wait_ns(const struct launch_wait *wait);

#endif
