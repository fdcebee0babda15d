/* What kernels take exactly, and how long a launch waits for the card.
 *
 * A pair of events round one launch on an idle stream measures the launch's own way to the card too, which takes as
 * long as the kernels of many programs and is each host's own. Where start, launch and end are all in the stream before
 * the card comes to the first of them, the pair measures the kernel. So a few launches of each short kernel, and then
 * one now and then, are held: their stream waits for a host function, which
 * waits for the record of the end, though not for long. From
 * what the same kernels seem to take when they are not held it is learnt how long launches wait.
 *
 * Arithmetic alone, as in gpu_time.h.
 */
#ifndef VCUDA_LAUNCH_WAIT_H
#define VCUDA_LAUNCH_WAIT_H

#include "cuda/cost.h"

#include <stdbool.h>
#include <stdint.h>

/* Streams are held for at most so much of a process's time. */
#define HOLDING_PERMILLE 5

/* Any thread. */
struct holding_budget {
    uint64_t at;
    int64_t left_ns;
};

/* Is a launch of this kind to be held now? What holding is expected to take is then spent. */
bool holding_wanted(struct holding_budget *budget, const struct cost *cost, uint64_t now);

/* From the call of the host function to its return it took so long. */
void holding_took(struct holding_budget *budget, uint64_t ns);

/* Only the one that settles: a launch of this kind took so long, exactly. */
void exact_told(const struct cost *cost, uint64_t ns);

/* What launches of this kind take on average; 0: it is not known. `steady`: each takes about that. */
uint64_t exact_ns(const struct cost *cost, bool *steady);

/* Of the launches on a context's idle streams. Only the one that settles. */
struct launch_wait {
    double ns, off;   /* the average, and how far from it each was */
    double kernel_ns; /* what its kernels take on average */
    uint32_t told;
};

/* A launch that was not held was over `seemed_ns` after it was called, where `exact` is what its kind takes. */
void launch_wait_told(struct launch_wait *wait, int64_t seemed_ns, uint64_t exact);

/* 0: not known. */
uint64_t launch_wait_ns(const struct launch_wait *wait);

#endif
