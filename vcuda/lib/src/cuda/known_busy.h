/* Time in which a context surely had work on its card, held against what was charged for it.
 *
 * Launches that are not measured cost the mean of their kind, so that a long kernel behind short ones of its name would
 * cost next to nothing. But of a stream one knows more than means: from when its last launch was made, or its work
 * before that ended, until a recorded end is reached, it has work without a pause. What the page's timeline lacks of
 * such time is charged, some milliseconds later, when all that ran then has been settled.
 *
 * Arithmetic alone, as in gpu_time.h. Times are CLOCK_MONOTONIC in ns.
 */
#ifndef VCUDA_KNOWN_BUSY_H
#define VCUDA_KNOWN_BUSY_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda/busy_intervals.h"
#include "page.h"

#define KNOWN_BUSY_DELAY_NS 5000000
/* What was charged is entered where it is thought to have run. So much of it may lie too early. */
#define KNOWN_BUSY_EARLY_US 300
/* The same while other containers share the card, whose turns come now and then. */
#define KNOWN_BUSY_EARLY_SHARED_US 10000

/* All zero: nothing known. */
struct known_busy {
    struct busy_intervals busy;
    struct {
        int64_t ms;
        int64_t us; /* known of it */
    } cell[VCUDA_TIMELINE_CELLS];
    int64_t next_ms; /* the first that was not compared yet, ... */
    int64_t end_ms;  /* ... and the first of which nothing is known */
    int64_t early_us;
};

/* It had work from `from` to `to`, which is charged as far as it is already. */
void known_busy_add(struct known_busy *known, int64_t from, int64_t to);

/* Enter into the timeline what it lacks of the time that is known, up to KNOWN_BUSY_DELAY_NS before `now`; returns how
 * much that is, in ns. */
int64_t known_busy_compare(struct known_busy *known, struct vcuda_timeline *timeline, bool is_shared, int64_t now);

/* Is any left to be compared? */
static inline bool known_busy_waits(const struct known_busy *known) {
    return known->end_ms > known->next_ms;
}

#endif
