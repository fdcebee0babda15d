/* Around every call that puts work on a card:
 * `if (!throttle_may_wait() || !throttle_begin(...)) call the driver; else call it and throttle_end(...)`.
 *
 * Beginning pays the work's expected cost (payment.h), waits at the card's gate (gate_wait.h) and finds the span that
 * measures it. Ending hands the work to the meter.
 */
#ifndef VCUDA_THROTTLE_H
#define VCUDA_THROTTLE_H

#include <stdbool.h>
#include <stdint.h>

#include "cu_types.h"
#include "cuda/throttle_view.h"

struct throttled_work {
    struct stream_meter *meter;
    struct timing_span *span;
    struct cost *cost;
    uint64_t expected_ns; /* as long as the stream is expected to be busy with it */
    uint64_t paid_ns;     /* of the container's credit */
    bool has_turn;        /* it goes in its process's turn at the card's gate */
};

/* After throttle_may_wait(). False: this call is not ours to hold back or to measure (no limit on its card, in capture,
 * a card of nobody's). `per_thread`: the null stream is the thread's own. What is launched and how much of it tell
 * kinds of work apart. */
bool throttle_begin(struct throttled_work *work, CUstream stream, bool per_thread, const void *what, uint64_t size);

/* The same of what may have to be over when its call returns. */
bool throttle_begin_blocking(struct throttled_work *work, CUstream stream, bool per_thread, const void *what,
                             uint64_t size);

/* After the driver's answer. */
void throttle_end(struct throttled_work *work, CUresult result);

#endif
