/* Limits what a container launches in any window to its share plus half a point, or plus the kernel begun last: time
 * saved up by a pause may be spent at once, but once per window. Measured on the card up to 10 ms more can appear, from
 * work that was queued when a window began.
 *
 * Each process of the container keeps its own, computed from words that all of them share. */
#ifndef VCUDA_WINDOW_CAP_H
#define VCUDA_WINDOW_CAP_H

#include <stdbool.h>
#include <stdint.h>

#include "page.h"

#define WINDOW_CAP_MARKS 512
#define WINDOW_CAP_STEPS 500     /* per window */
#define WINDOW_CAP_SLACK_IN 333u /* part of a window: 3 ms of a second */

struct window_cap {
    bool busy;                      /* lock; a thread that finds it taken continues without it */
    uint64_t step_ns;               /* time between marks */
    uint64_t at;                    /* when it was last updated; 0: never */
    int64_t income_ns;              /* credit earned by the share up to then */
    int64_t left_ns;                /* income less what was used, at that time; may be negative */
    uint64_t known_ns;              /* there is no mark before this */
    uint32_t share_q8;              /* share in force then, ... */
    uint64_t steady_since;          /* ... and since when */
    int64_t mark[WINDOW_CAP_MARKS]; /* what was left at each whole step */
};

/* Time until there is room in the last window for more work, 0: now; never more than a window. `used_ns`: total use of
 * the container so far, including work that is paid for and not yet measured. */
uint64_t window_cap_wait_ns(struct window_cap *cap, uint64_t window_ns, uint32_t share_q8, uint64_t used_ns,
                            uint64_t now);

/* True if all of the last window is known and the share did not change in it. A pause's savings are then exactly the
 * room in the window. */
bool window_cap_is_steady(const struct window_cap *cap, uint64_t window_ns, uint64_t now);

#endif
