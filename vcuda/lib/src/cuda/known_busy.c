#include "cuda/known_busy.h"
#include "timeline.h"

#define MS INT64_C(1000000)

static void add_to_cell(struct known_busy *known, int64_t ms, int64_t us) {
    int at = (int)(ms % VCUDA_TIMELINE_CELLS);
    if (known->cell[at].ms != ms) {
        known->cell[at].ms = ms;
        known->cell[at].us = 0;
    }
    known->cell[at].us += us;
}

void known_busy_add(struct known_busy *known, int64_t from, int64_t to) {
    if (from < to - VCUDA_TIMELINE_CELLS * MS)
        from = to - VCUDA_TIMELINE_CELLS * MS;
    if (from < 0 || from >= to)
        return;
    int64_t first = from / MS;
    if (first < known->next_ms) /* a long kernel's time is known at its end: its milliseconds are compared again */
        known->next_ms = first;
    else if (!known_busy_waits(known)) /* with the one before, in which some of it may have been charged */
        known->next_ms = first > known->next_ms ? first - 1 : first;
    while (from < to) {
        int64_t ms = from / MS, end = (ms + 1) * MS < to ? (ms + 1) * MS : to;
        int64_t fresh = busy_intervals_add(&known->busy, from, end);
        add_to_cell(known, ms, (fresh + 500) / 1000);
        if (ms >= known->end_ms)
            known->end_ms = ms + 1;
        from = end;
    }
}

int64_t known_busy_compare(struct known_busy *known, struct vcuda_timeline *timeline, uint32_t part_q8, bool is_shared,
                           int64_t now) {
    const int64_t most = is_shared ? KNOWN_BUSY_EARLY_SHARED_US : KNOWN_BUSY_EARLY_US;
    int64_t lacked = 0, until = (now - KNOWN_BUSY_DELAY_NS) / MS, oldest = now / MS - VCUDA_TIMELINE_CELLS + 1;
    if (known->next_ms < oldest) /* of those others may have the cells by now */
        known->next_ms = oldest;
    for (; known_busy_waits(known) && known->next_ms < until; known->next_ms++) {
        int at = (int)(known->next_ms % VCUDA_TIMELINE_CELLS);
        int64_t us = known->cell[at].ms == known->next_ms ? known->cell[at].us * part_q8 / 256 : 0;
        int64_t charged = timeline_us(timeline, known->next_ms);
        known->early_us = us || charged ? known->early_us + charged - us : 0;
        if (known->early_us < 0) {
            timeline_enter(timeline, known->next_ms, (uint32_t)-known->early_us);
            lacked -= known->early_us * 1000;
            known->early_us = 0;
        } else if (known->early_us > most) {
            known->early_us = most;
        }
    }
    return lacked;
}
