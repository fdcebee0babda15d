/* When a best-effort container must not launch on its card. Arithmetic alone: no function here reads a file or a clock
 * or calls the driver.
 *
 * While protected containers are on the card, a best-effort container launches only if at most GATE_AHEAD_NS of its
 * work is in flight, so that a protected launch waits for that and for one kernel. Of several best-effort containers
 * one launches at a time (turn.h). While the gate is closed the container launches nothing, unless it would fall behind
 * its own share of the window (gate_floor). A call is held for GATE_HOLD_MOST_NS at most, since the program may hold
 * locks that its other threads wait for; after that the launch itself waits, on its stream (gate_deferred.h).
 */
#ifndef VCUDA_GATE_H
#define VCUDA_GATE_H

#include <stdbool.h>
#include <stdint.h>

#define GATE_AHEAD_NS UINT64_C(500000)
#define GATE_HOLD_MOST_NS UINT64_C(50000000)
#define GATE_FUTURE_MOST_NS UINT64_C(200000000) /* the host never closes a gate for longer */
#define GATE_NAP_LEAST_NS UINT64_C(50000)
#define GATE_NAP_LATE_NS UINT64_C(150000) /* between two checks of work that should have ended */
#define GATE_NAP_MOST_NS UINT64_C(1000000)

/* True if a gate with this word is closed. The host writes no deadline that is further away than the most. */
static inline bool gate_is_closed(uint64_t until_ns, uint64_t now) {
    return until_ns > now && until_ns - now <= GATE_FUTURE_MOST_NS;
}

/* Work of a process that is in flight on a card. Host times, CLOCK_MONOTONIC in ns. */
struct gate_flight {
    uint64_t ahead_ns; /* cost of the work that was launched and is not known to have ended */
    uint64_t since;    /* when the oldest piece of it began, as far as is known; 0: unknown */
    uint64_t head_ns;  /* the expected cost of that oldest piece */
};

/* Time until there is room for one more launch; 0: now. `undisturbed`: nothing has kept the card from the oldest piece,
 * so its expected end counts. */
uint64_t gate_room_wait_ns(const struct gate_flight *flight, bool undisturbed, uint64_t now);

/* ---- the container's own share
 * ---------------------------------------------------------------------------------------
 */

#define GATE_FLOOR_MARKS 64
#define GATE_FLOOR_STEPS 50 /* per window */

/* What the container had during the last window: GPU time, plus time in which it had nothing to run. */
struct gate_floor {
    uint64_t step_ns;
    uint64_t from; /* the first known mark, in steps */
    uint64_t at;   /* the last mark, in steps */
    uint64_t had_ns;
    uint64_t mark[GATE_FLOOR_MARKS];
};

/* Record that the container had `had_ns` in total up to `now`. */
void gate_floor_note(struct gate_floor *floor, uint64_t window_ns, uint64_t had_ns, uint64_t now);

/* True if the container has work and would get less than its share of some window if it started any later. `rate_q8`:
 * the part of the card that it would have from then on (a part below its share counts as slightly more). */
bool gate_floor_owes(const struct gate_floor *floor, uint32_t share_q8, uint32_t rate_q8, uint64_t window_ns,
                     uint64_t had_ns, uint64_t now);

#endif
