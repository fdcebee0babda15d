/* Time in which a context surely had work on its card, held against what was charged for it.
 *
 * Launches that are not measured cost the mean of their kind, so that a long kernel behind short ones of its name would
 * cost next to nothing. But a stream is surely busy for some of the time: its work is queued in order, so from its last
 * launch (or from the end of its earlier work, if that is later) until the recorded end it has work without a pause.
 * Some milliseconds later, when all that ran then has been settled, the part of that time which the page's timeline
 * lacks is charged.
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
/* Charged time is entered where it is assumed to have run; it may be entered too early by this much. */
#define KNOWN_BUSY_EARLY_US 300
/* The same tolerance while other containers share the card, whose time slices interleave. */
#define KNOWN_BUSY_EARLY_SHARED_US 10000

/* All zero: nothing is known. */
struct known_busy {
    struct busy_intervals busy;
    struct {
        int64_t ms;
        int64_t us;      /* time in this millisecond during which the context surely had work, ... */
        int64_t long_us; /* ... and in which a run of it had lasted for KNOWN_BUSY_LONG_NS */
    } cell[VCUDA_TIMELINE_CELLS];
    int64_t next_ms;  /* the first millisecond that was not compared yet, ... */
    int64_t end_ms;   /* ... and the first one of which nothing is known */
    int64_t early_us; /* time charged in earlier milliseconds beyond what is known of them */
};

/* A run of work is long once it has lasted for this time. */
#define KNOWN_BUSY_LONG_NS 8000000
/* The part of the known time, x 256, that the timeline must hold. */
struct known_part {
    uint32_t q8, long_q8; /* of all known time, and of the time after a run has become long */
};

/* The context surely had work from `from` to `to`. Its run of work began at `run_from`. Other containers may have had
 * the card until `since`. */
void known_busy_add(struct known_busy *known, int64_t run_from, int64_t from, int64_t since, int64_t to);

/* Enter the known busy time that the timeline lacks into it, up to KNOWN_BUSY_DELAY_NS before `now`. Returns the time
 * entered, in ns. */
int64_t known_busy_compare(struct known_busy *known, struct vcuda_timeline *timeline, struct known_part part,
                           bool is_shared, int64_t now);

/* True if some known time was not compared yet. */
static inline bool known_busy_waits(const struct known_busy *known) {
    return known->end_ms > known->next_ms;
}

#endif
