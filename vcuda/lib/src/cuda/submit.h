/* Around every call that puts work on a card: `if (!work_begin(...)) call the driver; else call it and work_end(...)`.
 *
 * Beginning pays the work's expected cost out of the thread's allowance, which comes out of the container's credit; it
 * waits while there is none. Ending hands the work to the meter.
 */
#ifndef VCUDA_SUBMIT_H
#define VCUDA_SUBMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "cu_types.h"

struct work {
    struct meter *meter;
    struct piece *piece;
    struct cost *cost;
    uint64_t paid_ns;
};

/* False: this call is not ours to hold back or to measure (no limit, in capture, a card of nobody's). `per_thread`: the
 * null stream is the thread's own. `key` is cost_key()'s. */
bool work_begin(struct work *work, CUstream stream, bool per_thread, uint64_t key);

/* After the driver's answer. */
void work_end(struct work *work, CUresult result);

/* Put into the page the launches that no limit held back: the thread is about to wait. */
void work_count(void);

#endif
