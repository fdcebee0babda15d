/* When a best-effort container puts no work on its card: arithmetic alone. No file is read here, no driver is called
 * and no clock is looked at.
 *
 * While protected containers are on its card, a best-effort one has at most GATE_AHEAD_NS of measured work in flight
 * when it launches, so that what is launched elsewhere then waits for that and one kernel; of several such containers
 * one launches at a time (turn.h). While the gate is closed it puts nothing there, unless it would fall behind its own
 * share of the window (gate_floor). A call is held for GATE_HOLD_MOST_NS at most, for the program may hold locks that
 * others wait for; then what it launches waits by itself (gate_deferred.h).
 */
#ifndef VCUDA_GATE_H
#define VCUDA_GATE_H

#include <stdbool.h>
#include <stdint.h>

#define GATE_AHEAD_NS UINT64_C(500000)
#define GATE_HOLD_MOST_NS UINT64_C(50000000)
#define GATE_FUTURE_MOST_NS UINT64_C(200000000) /* no host closes a gate for longer */
#define GATE_NAP_LEAST_NS UINT64_C(50000)
#define GATE_NAP_LATE_NS UINT64_C(150000) /* between looks at work that should have ended */
#define GATE_NAP_MOST_NS UINT64_C(1000000)

/* Is a gate with this word closed? A deadline too far away is none that a host has written. */
static inline bool gate_is_closed(uint64_t until_ns, uint64_t now) {
    return until_ns > now && until_ns - now <= GATE_FUTURE_MOST_NS;
}

/* What a process has in flight on a card. Times of the host's clock. */
struct gate_flight {
    uint64_t ahead_ns; /* measured cost of what is launched and not known to have ended */
    uint64_t since;    /* when the present head of it began, as far as is known; 0: nobody knows */
    uint64_t head_ns;  /* what its head is expected to cost */
};

/* How long until there is room for one more launch; 0: there is. The head's expected end counts while nothing has kept
 * the card from it: `undisturbed`. */
uint64_t gate_room_wait_ns(const struct gate_flight *flight, bool undisturbed, uint64_t now);

/* ---- the container's own share
 * ---------------------------------------------------------------------------------------
 */

#define GATE_FLOOR_MARKS 64
#define GATE_FLOOR_STEPS 50 /* in a window */

/* What the container had over the last window: GPU time, and time in which it wanted none. */
struct gate_floor {
    uint64_t step_ns;
    uint64_t from; /* the first mark that is known, in steps */
    uint64_t at;   /* the last one */
    uint64_t had_ns;
    uint64_t mark[GATE_FLOOR_MARKS];
};

/* `had_ns` until `now`, growing: what the container had ever. */
void gate_floor_note(struct gate_floor *floor, uint64_t window_ns, uint64_t had_ns, uint64_t now);

/* Would the container, which has work, get less than its share of some window if it began any later? `rate_q8`: what it
 * would have of the card from then on (less than its share is taken as a little more). */
bool gate_floor_owes(const struct gate_floor *floor, uint32_t share_q8, uint32_t rate_q8, uint64_t window_ns,
                     uint64_t had_ns, uint64_t now);

#endif
