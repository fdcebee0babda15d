#include "timeline.h"

#define CELL_NS 1000000
#define MOST_NS ((int64_t)VCUDA_TIMELINE_CELLS * CELL_NS)
#define CELL_US_MOST 0xffffu

/* What the cell held of another round of the ring is over. */
static uint32_t with(uint32_t word, uint32_t round, uint32_t us) {
    uint32_t before = word >> 16 == round ? word & CELL_US_MOST : 0;
    return round << 16 | (before + us < CELL_US_MOST ? before + us : CELL_US_MOST);
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Add to the cell of millisecond `ms`; returns what it held before, in microseconds. */
static uint32_t add(struct vcuda_timeline *timeline, int64_t ms, uint32_t us) {
    uint32_t round = (uint32_t)(ms / VCUDA_TIMELINE_CELLS) & 0xffff;
    uint32_t *cell = &timeline->cell[ms % VCUDA_TIMELINE_CELLS], word = __atomic_load_n(cell, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(cell, &word, with(word, round, us), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    return word >> 16 == round ? word & CELL_US_MOST : 0;
}

/* Of `ns` of work in flight, what a cell that holds `us` has room for. */
static int64_t fitting(int64_t ns, uint32_t us, uint32_t divisor_q8) {
    int64_t room = (int64_t)CELL_NS * divisor_q8 / 256 - (int64_t)us * 1000;
    return room > 0 ? least(ns, room) : 0;
}

/* Fill what room there is in the milliseconds from `ms` on, by `step`, up to `last`; returns how much of `ns` it took.
 */
static int64_t fill(struct vcuda_timeline *timeline, int64_t ms, int64_t last, int step, int64_t ns,
                    uint32_t divisor_q8) {
    int64_t filled = 0;
    for (; filled < ns && (last - ms) * step >= 0; ms += step) {
        int64_t more = fitting(ns - filled, add(timeline, ms, 0), divisor_q8);
        if (more)
            add(timeline, ms, (uint32_t)(more + 500) / 1000);
        filled += more;
    }
    return filled;
}

int64_t timeline_add(struct vcuda_timeline *timeline, const struct timeline_work *work, uint32_t divisor_q8) {
    int64_t fits = 0, from = work->from, to = work->to;
    if (from < to - MOST_NS) {
        fits = to - MOST_NS - from; /* in cells that are gone */
        from = to - MOST_NS;
    }
    if (from < 0)
        from = 0;
    const int64_t first = from / CELL_NS, ns = to - from + fits, oldest = to - MOST_NS > 0 ? to - MOST_NS : 0;
    while (from < to) {
        int64_t ms = from / CELL_NS, next = least((ms + 1) * CELL_NS, to);
        uint32_t us = (uint32_t)(next / 1000 - from / 1000); /* work in a row adds up exactly */
        fits += fitting(next - from, add(timeline, ms, us), divisor_q8);
        from = next;
    }
    int64_t since = work->since > oldest ? work->since : oldest;
    if (fits < ns)
        fits += fill(timeline, first - 1, since / CELL_NS, -1, ns - fits, divisor_q8);
    if (fits < ns && work->until > to)
        fits += fill(timeline, to / CELL_NS + 1, work->until / CELL_NS, 1, ns - fits, divisor_q8);
    return fits;
}

uint32_t timeline_us(const struct vcuda_timeline *timeline, int64_t ms) {
    uint32_t word = __atomic_load_n(&timeline->cell[ms % VCUDA_TIMELINE_CELLS], __ATOMIC_RELAXED);
    return word >> 16 == (uint32_t)(ms / VCUDA_TIMELINE_CELLS & 0xffff) ? word & CELL_US_MOST : 0;
}

void timeline_enter(struct vcuda_timeline *timeline, int64_t ms, uint32_t us) {
    add(timeline, ms, us);
}
