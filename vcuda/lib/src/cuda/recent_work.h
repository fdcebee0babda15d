/* When other processes of the container had work on a card: access to struct vcuda_recent_work in the usage page. A
 * card runs one process at a time, so a measured launch spans the time slices of other processes. Lock-free. */
#ifndef VCUDA_RECENT_WORK_H
#define VCUDA_RECENT_WORK_H

#include <stdint.h>

#include "cuda/busy_intervals.h"
#include "page.h"

/* The last entry that a process made; settling thread only. All zero: none. */
struct recent_entry {
    uint64_t number;
    int64_t from, to;
};

/* Record that the process in this slot had work from `from` to `to`, CLOCK_MONOTONIC in ns. Work that begins within
 * RECENT_WORK_JOINS_NS of the end of its last entry extends that entry. */
#define RECENT_WORK_JOINS_NS 2000
void recent_work_add(struct vcuda_recent_work *recent, struct recent_entry *last, uint32_t slot, int64_t from,
                     int64_t to);

/* A process's copy of the ring. It holds entries for longer than the ring does, which a process that measures each of
 * its launches fills within a millisecond. All zero: nothing was copied. */
#define RECENT_WORK_COPIED 512
struct recent_copy {
    uint64_t entries; /* number of entries ever made, at the last copy */
    uint64_t entry[RECENT_WORK_COPIED];
};

/* Bring the copy up to date. Entries that were overwritten since the last call are lost. */
void recent_work_copy(struct recent_copy *copy, const struct vcuda_recent_work *recent);

/* Find the work of all processes but the one in this slot between `from` and `to`: disjoint intervals in ascending
 * order. Returns their number. */
unsigned recent_work_of_others(const struct recent_copy *copy, uint32_t slot, int64_t from, int64_t to,
                               struct busy_interval found[RECENT_WORK_COPIED]);

#endif
