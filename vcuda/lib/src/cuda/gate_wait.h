/* The card's gate, as a best-effort container finds it: waiting there before a launch. gate.h decides. */
#ifndef VCUDA_GATE_WAIT_H
#define VCUDA_GATE_WAIT_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda/stream_meter.h"

/* What comes to be launched. */
struct gated_launch {
    uint64_t expected_ns; /* what it is expected to cost */
    bool is_unknown;      /* ... which is a guess */
    bool may_defer;       /* the call returns before the work has run: the work may wait by itself */
};

/* Wait until the work may be put on its card, or may be put there to wait by itself. The thread holds none of the
 * library's locks and is not capturing; errno is kept. True: gate_launched() is to be called once it is there. */
bool gate_wait(struct stream_meter *meter, const struct gated_launch *launch);

#endif
