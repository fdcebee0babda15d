#include "cuda/busy_intervals.h"

#include <string.h>

static void remove_at(struct busy_intervals *busy, unsigned first, unsigned count) {
    memmove(&busy->interval[first], &busy->interval[first + count],
            (busy->count - first - count) * sizeof(struct busy_interval));
    busy->count -= count;
}

int64_t busy_intervals_lack(const struct busy_intervals *busy, int64_t from, int64_t to) {
    int64_t lack = to - from;
    for (unsigned i = busy->count; i > 0 && busy->interval[i - 1].to > from; i--) {
        const struct busy_interval *interval = &busy->interval[i - 1];
        int64_t begin = interval->from > from ? interval->from : from, end = interval->to < to ? interval->to : to;
        lack -= end > begin ? end - begin : 0;
    }
    return lack;
}

int64_t busy_intervals_add(struct busy_intervals *busy, int64_t from, int64_t to) {
    if (to <= from)
        return 0;
    unsigned first = busy->count;
    while (first > 0 &&
           busy->interval[first - 1].to >= from) /* the newest are at the end, as is nearly every addition */
        first--;
    unsigned last = first; /* those it touches: [first, last) */
    int64_t fresh = to - from, low = from, high = to;
    for (; last < busy->count && busy->interval[last].from <= to; last++) {
        const struct busy_interval *interval = &busy->interval[last];
        int64_t begin = interval->from > from ? interval->from : from, end = interval->to < to ? interval->to : to;
        fresh -= end - begin;
        low = interval->from < low ? interval->from : low;
        high = interval->to > high ? interval->to : high;
    }
    if (last > first) {
        busy->interval[first] = (struct busy_interval){low, high};
        remove_at(busy, first + 1, last - first - 1);
        return fresh;
    }
    if (busy->count == BUSY_INTERVALS_MOST) {
        busy->interval[1].from = busy->interval[0].from;
        remove_at(busy, 0, 1);
        if (!first--) /* older than all that is remembered */
            return 0;
    }
    memmove(&busy->interval[first + 1], &busy->interval[first], (busy->count - first) * sizeof(struct busy_interval));
    busy->interval[first] = (struct busy_interval){from, to};
    busy->count++;
    return fresh;
}
