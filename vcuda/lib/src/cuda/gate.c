#include "cuda/gate.h"

#define WHOLE_Q8 (UINT64_C(100) * 256)
#define MORE_THAN_SHARE 9 / 8
#define WINDOW_LEAST_NS UINT64_C(10000000)
#define WINDOW_MOST_NS UINT64_C(60000000000)

static uint64_t clamped(uint64_t value, uint64_t least, uint64_t most) {
    return value < least ? least : value > most ? most : value;
}

uint64_t gate_room_wait_ns(const struct gate_flight *flight, bool undisturbed, uint64_t now) {
    uint64_t ran = flight->since && now > flight->since ? now - flight->since : 0;
    if (ran > flight->head_ns)
        ran = flight->head_ns;
    uint64_t soonest = flight->ahead_ns > ran ? flight->ahead_ns - ran : 0;
    if ((undisturbed ? soonest : flight->ahead_ns) <= GATE_AHEAD_NS)
        return 0;
    if (soonest <= GATE_AHEAD_NS) /* it is late, and ends at any moment */
        return GATE_NAP_LATE_NS;
    return clamped(soonest - GATE_AHEAD_NS, GATE_NAP_LEAST_NS, GATE_NAP_MOST_NS);
}

/* ---- the container's own share
 * ---------------------------------------------------------------------------------------
 */

static uint64_t window_of(uint64_t window_ns) {
    return clamped(window_ns, WINDOW_LEAST_NS, WINDOW_MOST_NS);
}

void gate_floor_note(struct gate_floor *floor, uint64_t window_ns, uint64_t had_ns, uint64_t now) {
    uint64_t step = window_of(window_ns) / GATE_FLOOR_STEPS, at = now / step;
    if (had_ns < floor->had_ns && floor->step_ns == step) /* what was in flight took less than expected */
        had_ns = floor->had_ns;
    if (floor->step_ns != step || at < floor->at) {
        *floor = (struct gate_floor){.step_ns = step, .from = at, .at = at, .had_ns = had_ns};
        floor->mark[at % GATE_FLOOR_MARKS] = had_ns;
        return;
    }
    uint64_t steps = at - floor->at, grown = had_ns - floor->had_ns;
    uint64_t first = steps > GATE_FLOOR_MARKS ? steps - GATE_FLOOR_MARKS + 1 : 1;
    for (uint64_t i = first; i <= steps; i++) /* taken to have grown evenly since the last note */
        floor->mark[(floor->at + i) % GATE_FLOOR_MARKS] =
            floor->had_ns + (uint64_t)((double)grown * (double)i / (double)steps);
    floor->at = at;
    if (steps)
        floor->had_ns = had_ns;
    if (at - floor->from >= GATE_FLOOR_MARKS)
        floor->from = at - GATE_FLOOR_MARKS + 1;
}

bool gate_floor_owes(const struct gate_floor *floor, uint32_t share_q8, uint32_t rate_q8, uint64_t window_ns,
                     uint64_t had_ns, uint64_t now) {
    uint64_t window = window_of(window_ns), step = floor->step_ns, at = now / (step ? step : 1);
    uint64_t share = share_q8 > WHOLE_Q8 ? WHOLE_Q8 : share_q8;
    uint64_t due = window * share / WHOLE_Q8;
    uint64_t rate = clamped(rate_q8, share * MORE_THAN_SHARE, WHOLE_Q8);
    if (!step || at < floor->at)
        return false;
    for (uint64_t back = 0; back < GATE_FLOOR_STEPS && at - back > floor->from; back++) {
        uint64_t mark = at - back; /* windows that began then end when `ahead` has passed */
        if (mark > floor->at)
            continue;
        uint64_t then = floor->mark[mark % GATE_FLOOR_MARKS], had = had_ns > then ? had_ns - then : 0;
        uint64_t ahead = window > now - mark * step ? window - (now - mark * step) : 0;
        if (had + ahead * rate / WHOLE_Q8 < due)
            return true;
    }
    return false;
}
