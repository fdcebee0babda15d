/* When a context had work on its card, as a union of intervals: time in which two streams had work counts once. */
#ifndef VCUDA_BUSY_INTERVALS_H
#define VCUDA_BUSY_INTERVALS_H

#include <stdint.h>

#define BUSY_INTERVALS_MOST 128

struct busy_intervals {
    unsigned count;
    struct busy_interval {
        int64_t from, to;
    } interval[BUSY_INTERVALS_MOST]; /* disjoint, ascending */
};

/* Add an interval; returns how much of it was not covered yet. When the table is full the two oldest intervals are
 * merged across their gap. */
int64_t busy_intervals_add(struct busy_intervals *busy, int64_t from, int64_t to);

/* How much of the interval is not covered yet. */
int64_t busy_intervals_lack(const struct busy_intervals *busy, int64_t from, int64_t to);

#endif
