/* How much of a measured launch's time other processes of the container had. The card runs one process at a time, so
 * events around a launch span the time slices of all processes. */
#ifndef VCUDA_OTHER_PROCESSES_H
#define VCUDA_OTHER_PROCESSES_H

#include "cuda/timing_span.h"

/* For a measured launch that ran as `ran`: time of other processes. Call before the launch is entered into the
 * context's busy intervals. Where its kind's own time is known (shared_cost.h), it is all that the launch took beyond
 * that, and other_processes_lacked_ns() compares it later with what they did; otherwise what they have published by
 * now. `shared`: other containers may have had the card too. Then it is 0, since the host's factor, by which the time
 * is divided, counts these processes as well. */
uint64_t other_processes_had_ns(struct timing_span *span, const struct gpu_interval *ran, bool shared, uint64_t now);

/* What of such waits other processes' work does not explain, now that they have settled it: it was the launch's own,
 * and is entered into the page's timeline. Teaches what launches of its kind add. Returns ns. */
#define OTHERS_SETTLE_NS 5000000u
uint64_t other_processes_lacked_ns(struct context_meter *context_meter, uint64_t now);

/* Time that the card may have spent between `from` and `to` on switching from this process to others and back. It is
 * not charged to any process. */
int64_t other_processes_switches_ns(const struct context_meter *context_meter, int64_t from, int64_t to);

/* Publish that this process's work ran from `from` to `to` of the card's time. */
void other_processes_told(const struct timing_span *span, int64_t from, int64_t to);

#endif
