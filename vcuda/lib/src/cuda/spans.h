/* When a context had work on its card: the union of intervals, so that work of two streams at once counts once. */
#ifndef VCUDA_SPANS_H
#define VCUDA_SPANS_H

#include <stdint.h>

#define SPANS_MOST 128

struct spans {
    unsigned count;
    struct span {
        int64_t from, to;
    } span[SPANS_MOST]; /* disjoint, ascending */
};

/* Add an interval; returns how much of it was new. When there are too many, the oldest gap is forgotten: what comes
 * later than that is counted as if it were new only beyond it. */
int64_t spans_add(struct spans *spans, int64_t from, int64_t to);

#endif
