/* Waits at the card's gate before a launch of a best-effort container. gate_passage.h decides. */
#ifndef VCUDA_GATE_WAIT_H
#define VCUDA_GATE_WAIT_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda/stream_meter.h"

/* A launch that arrives at the gate. */
struct gated_launch {
    uint64_t expected_ns; /* expected cost */
    bool is_unknown;      /* `expected_ns` is only a guess */
    bool may_defer;       /* the call returns before the work has run, so the launch can be deferred */
};

/* Wait until the work may be launched, or may be launched deferred. The calling thread holds none of the library's
 * locks and is not capturing; errno is preserved. True: call gate_launched() once it is launched. */
bool gate_wait(struct stream_meter *meter, const struct gated_launch *launch);

#endif
