#include "cuda/spans.h"

#include <string.h>

static void remove_at(struct spans *spans, unsigned first, unsigned count) {
    memmove(&spans->span[first], &spans->span[first + count], (spans->count - first - count) * sizeof(struct span));
    spans->count -= count;
}

int64_t spans_add(struct spans *spans, int64_t from, int64_t to) {
    if (to <= from)
        return 0;
    unsigned first = spans->count;
    while (first > 0 && spans->span[first - 1].to >= from) /* the newest are at the end, as is nearly every addition */
        first--;
    unsigned last = first; /* those it touches: [first, last) */
    int64_t fresh = to - from, low = from, high = to;
    for (; last < spans->count && spans->span[last].from <= to; last++) {
        const struct span *span = &spans->span[last];
        int64_t begin = span->from > from ? span->from : from, end = span->to < to ? span->to : to;
        fresh -= end - begin;
        low = span->from < low ? span->from : low;
        high = span->to > high ? span->to : high;
    }
    if (last > first) {
        spans->span[first] = (struct span){low, high};
        remove_at(spans, first + 1, last - first - 1);
        return fresh;
    }
    if (spans->count == SPANS_MOST) {
        spans->span[1].from = spans->span[0].from;
        remove_at(spans, 0, 1);
        if (!first--) /* older than all that is remembered */
            return 0;
    }
    memmove(&spans->span[first + 1], &spans->span[first], (spans->count - first) * sizeof(struct span));
    spans->span[first] = (struct span){from, to};
    spans->count++;
    return fresh;
}
