/* How much of a measured launch's time other processes of the container had. The card runs one process at a time, so
 * events around a launch span the time slices of all processes. */
#ifndef VCUDA_OTHER_PROCESSES_H
#define VCUDA_OTHER_PROCESSES_H

#include "cuda/timing_span.h"

/* For a measured launch that ran as `ran`: time of other processes, by their own measurements and estimates, outside
 * this context's other work. Call before the launch is entered into the context's busy intervals. Returns 0 for kinds
 * measured in windows only: the position of other processes' short launches is too uncertain to tell a time slice from
 * the launch's own long tail. */
uint64_t other_processes_had_ns(const struct timing_span *span, const struct gpu_interval *ran);

/* Time that the card may have spent between `from` and `to` on switching from this process to others and back. It is
 * not charged to any process. */
int64_t other_processes_switches_ns(const struct context_meter *context_meter, int64_t from, int64_t to);

/* Publish that this process's work ran from `from` to `to` of the card's time. */
void other_processes_told(const struct timing_span *span, int64_t from, int64_t to);

#endif
