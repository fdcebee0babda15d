/* Brackets every call that puts work on a card:
 * `if (!throttle_may_wait() || !throttle_begin(...)) call the driver; else call it and throttle_end(...)`.
 *
 * throttle_begin() pays the work's expected cost (payment.h), waits at the card's gate (gate_wait.h) and finds the span
 * that measures it. throttle_end() hands the work to the meter. */
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
    uint64_t expected_ns; /* how long the work is expected to keep the stream busy */
    uint64_t paid_ns;     /* taken from the container's credit */
    bool has_turn;        /* it uses the process's time slice at the card's gate */
};

/* Call after throttle_may_wait(). False: this call is neither throttled nor measured (no limit on its card, in capture,
 * a card outside the control pages). `per_thread`: the null stream is the thread's own. `what` and `size` identify the
 * kind of work. */
bool throttle_begin(struct throttled_work *work, CUstream stream, bool per_thread, const void *what, uint64_t size);

/* Like throttle_begin(), for work that may have to be finished when its call returns. */
bool throttle_begin_blocking(struct throttled_work *work, CUstream stream, bool per_thread, const void *what,
                             uint64_t size);

/* Call with the driver's result. */
void throttle_end(struct throttled_work *work, CUresult result);

#endif
