/* What a container used of its share in the last window, so that in no window of this length more is launched than its
 * share and half a point, or the kernel that was begun last: what a pause saved up may be spent at once, but once in a
 * window. As the card serves it, what was queued when a window began comes on top, 10 ms at most.
 *
 * Kept by each process of the container for itself, from words that all of them share.
 */
#ifndef VCUDA_WINDOW_CAP_H
#define VCUDA_WINDOW_CAP_H

#include <stdbool.h>
#include <stdint.h>

#include "page.h"

#define WINDOW_CAP_MARKS 512
#define WINDOW_CAP_STEPS 500     /* of a window */
#define WINDOW_CAP_SLACK_IN 333u /* of a window: 3 ms of a second */

struct window_cap {
    bool busy;                      /* lock; a thread that finds it taken goes on without */
    uint64_t step_ns;               /* between marks */
    uint64_t at;                    /* when it was noted last; 0: never */
    int64_t income_ns;              /* of the share, up to then */
    int64_t left_ns;                /* of the income, then: less what was used, which may be more */
    uint64_t known_ns;              /* no mark before this */
    uint32_t share_q8;              /* in force then, ... */
    uint64_t steady_since;          /* ... and since when */
    int64_t mark[WINDOW_CAP_MARKS]; /* what was left, at each whole step */
};

/* `used_ns`: by the container, ever, with what is paid for and not yet measured. Returns the wall time until there is
 * room in the last window for more work, 0: now. It is never more than a window. */
uint64_t window_cap_wait_ns(struct window_cap *cap, uint64_t window_ns, uint32_t share_q8, uint64_t used_ns,
                            uint64_t now);

/* Is the whole of the last window known, and was the share the same in all of it? What a pause saved up is then what
 * the window has room for. */
bool window_cap_is_steady(const struct window_cap *cap, uint64_t window_ns, uint64_t now);

#endif
