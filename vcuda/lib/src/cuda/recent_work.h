/* When other processes of the container had work on a card: struct vcuda_recent_work of their page. A card runs one
 * process at a time, and what a process measures of a launch spans others' turns. No function waits for a process. */
#ifndef VCUDA_RECENT_WORK_H
#define VCUDA_RECENT_WORK_H

#include <stdint.h>

#include "cuda/busy_intervals.h"
#include "page.h"

/* The entry that a process made last; only the thread that settles. All zero: none. */
struct recent_entry {
    uint64_t number;
    int64_t from, to;
};

/* The process in this slot had work from `from` to `to`, CLOCK_MONOTONIC in ns. Work that begins within
 * RECENT_WORK_JOINS_NS of the end of its last entry is joined to that. */
#define RECENT_WORK_JOINS_NS 2000
void recent_work_add(struct vcuda_recent_work *recent, struct recent_entry *last, uint32_t slot, int64_t from,
                     int64_t to);

/* What other processes than the one in this slot had between `from` and `to`: disjoint intervals in ascending order.
 * Returns how many. */
unsigned recent_work_of_others(const struct vcuda_recent_work *recent, uint32_t slot, int64_t from, int64_t to,
                               struct busy_interval found[VCUDA_RECENT_WORK_ENTRIES]);

#endif
