#include "cuda/known_busy.h"
#include "timeline.h"

#define MS INT64_C(1000000)

static void add_to_cell(struct known_busy *known, int64_t ms, int64_t us, bool counts, bool is_long) {
    int at = (int)(ms % VCUDA_TIMELINE_CELLS);
    if (known->cell[at].ms != ms)
        known->cell[at] = (typeof(*known->cell)){.ms = ms};
    known->cell[at].us += counts ? us : 0;
    known->cell[at].long_us += is_long ? us : 0;
}

static void add(struct known_busy *known, int64_t from, int64_t to, bool counts, bool is_long) {
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
        add_to_cell(known, ms, (fresh + 500) / 1000, counts, is_long);
        if (ms >= known->end_ms)
            known->end_ms = ms + 1;
        from = end;
    }
}

void known_busy_add(struct known_busy *known, int64_t run_from, int64_t from, int64_t since, int64_t to) {
    const int64_t long_from = run_from + KNOWN_BUSY_LONG_NS;
    while (from < to) {
        bool counts = from >= since, is_long = from >= long_from;
        int64_t end = !counts && since < to ? since : to;
        end = !is_long && long_from < end ? long_from : end;
        add(known, from, end, counts, is_long);
        from = end;
    }
}

/* Of the next millisecond, what must stand in the timeline. */
static int64_t part_us(const struct known_busy *known, struct known_part part) {
    int at = (int)(known->next_ms % VCUDA_TIMELINE_CELLS);
    if (known->cell[at].ms != known->next_ms)
        return 0;
    int64_t us = known->cell[at].us * part.q8 / 256, long_us = known->cell[at].long_us * part.long_q8 / 256;
    return us > long_us ? us : long_us;
}

int64_t known_busy_compare(struct known_busy *known, struct vcuda_timeline *timeline, struct known_part part,
                           bool is_shared, int64_t now) {
    const int64_t most = is_shared ? KNOWN_BUSY_EARLY_SHARED_US : KNOWN_BUSY_EARLY_US;
    int64_t lacked = 0, until = (now - KNOWN_BUSY_DELAY_NS) / MS, oldest = now / MS - VCUDA_TIMELINE_CELLS + 1;
    if (known->next_ms < oldest) /* of those others may have the cells by now */
        known->next_ms = oldest;
    for (; known_busy_waits(known) && known->next_ms < until; known->next_ms++) {
        int64_t us = part_us(known, part);
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
