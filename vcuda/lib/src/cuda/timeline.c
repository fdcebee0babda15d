#include "cuda/timeline.h"

#define CELL_NS 1000000
#define MOST_NS ((int64_t)VCUDA_TIMELINE_CELLS * CELL_NS)
#define CELL_US_MOST 0xffffu

/* What the cell held of another round of the ring is over. */
static uint32_t with(uint32_t word, uint32_t round, uint32_t us) {
    uint32_t before = word >> 16 == round ? word & CELL_US_MOST : 0;
    return round << 16 | (before + us < CELL_US_MOST ? before + us : CELL_US_MOST);
}

/* Of `ns` of work in flight, what a cell that held `before` microseconds has room for. */
static int64_t fitting(int64_t ns, uint32_t before, uint32_t divisor_q8) {
    int64_t room = (int64_t)CELL_NS * divisor_q8 / 256 - (int64_t)before * 1000;
    return ns < room ? ns : room > 0 ? room : 0;
}

int64_t timeline_add(struct vcuda_timeline *timeline, int64_t from, int64_t to, uint32_t divisor_q8) {
    int64_t fits = 0;
    if (from < to - MOST_NS) {
        fits = to - MOST_NS - from; /* in cells that are gone */
        from = to - MOST_NS;
    }
    if (from < 0)
        from = 0;
    while (from < to) {
        int64_t ms = from / CELL_NS, next = (ms + 1) * CELL_NS < to ? (ms + 1) * CELL_NS : to;
        uint32_t round = (uint32_t)(ms / VCUDA_TIMELINE_CELLS) & 0xffff;
        uint32_t us = (uint32_t)(next / 1000 - from / 1000); /* work in a row adds up exactly */
        uint32_t *cell = &timeline->cell[ms % VCUDA_TIMELINE_CELLS];
        uint32_t word = __atomic_load_n(cell, __ATOMIC_RELAXED);
        while (
            !__atomic_compare_exchange_n(cell, &word, with(word, round, us), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            ;
        fits += fitting(next - from, word >> 16 == round ? word & CELL_US_MOST : 0, divisor_q8);
        from = next;
    }
    return fits;
}
