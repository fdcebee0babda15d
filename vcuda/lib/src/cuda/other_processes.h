/* What other processes of the container had of the time that a launch was measured for. The card runs one process at a
 * time: what events show of a launch spans the turns of all. */
#ifndef VCUDA_OTHER_PROCESSES_H
#define VCUDA_OTHER_PROCESSES_H

#include "cuda/timing_span.h"

/* Of a measured launch that ran as `ran`: how much others had by what they measured and reckon, beside what its context
 * had. Asked before the launch is entered into the context's busy intervals. 0 for kinds that are measured in windows
 * alone: where others' short launches ran is reckoned too roughly to tell a turn from the launch's own long tail. */
uint64_t other_processes_had_ns(const struct timing_span *span, const struct gpu_interval *ran);

/* What the card may have taken between these times to turn from this process to others and back: nobody's work. */
int64_t other_processes_switches_ns(const struct context_meter *context_meter, int64_t from, int64_t to);

/* This process's work ran from `from` to `to` of the card's time. */
void other_processes_told(const struct timing_span *span, int64_t from, int64_t to);

#endif
