/* When a context had work on its card: the union of intervals, so that work of two streams at once counts once. */
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

/* Add an interval; returns how much of it was new. When there are too many, the oldest gap is forgotten: what comes
 * later than that is counted as if it were new only beyond it. */
int64_t busy_intervals_add(struct busy_intervals *busy, int64_t from, int64_t to);

/* How much of it would be new. */
int64_t busy_intervals_lack(const struct busy_intervals *busy, int64_t from, int64_t to);

#endif
