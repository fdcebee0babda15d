/* When every launch is measured by itself.
 *
 * An event before and after a launch costs the thread a microsecond or two and the card as much, too much for kernels
 * of some microseconds. So a process measures each of its launches, on all of its streams, in windows that begin at
 * random, and a launch outside of them costs the mean of its kind. What windows show is unbiased, whatever the program
 * does, as long as it cannot foretell them.
 *
 * Arithmetic alone, as in gpu_time.h.
 */
#ifndef VCUDA_MEASURING_WINDOW_H
#define VCUDA_MEASURING_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

/* Share of a thread's time that measuring may take, in thousandths: while means are unsure, and else. A record takes
 * about as long of the card's time as of the thread's. */
#define MEASURING_UNSURE_PERMILLE 12
#define MEASURING_SURE_PERMILLE 4
#define WINDOW_NS 1000000u
#define WINDOW_SPENT_MOST_NS 500000u /* it closes at once, however late the thread that settles looks */

/* All zero: open, so that a process's first launches are measured. */
struct measuring_window {
    uint32_t is_closed; /* launching threads read it */
    uint64_t spent_ns;  /* launching threads add what measuring took them since the window opened */
    uint64_t opened_at; /* 0: never closed yet */
    uint64_t since;     /* what was spent is counted from here, ... */
    uint64_t until;     /* ... and judged here */
    uint32_t dice;
    bool unsure; /* of what was measured lately the means say little; only the thread that settles */
};

/* Open or close the window if it is time to; the thread that settles calls this at each of its looks. A window that
 * cost little stays open. */
void measuring_window_turn(struct measuring_window *window, uint64_t now);

static inline bool measuring_window_is_open(const struct measuring_window *window) {
    return !__atomic_load_n(&window->is_closed, __ATOMIC_RELAXED);
}

/* The first launches in a window may run beside earlier ones of other streams that are not measured. */
#define WINDOW_EARLY_NS 250000u

static inline bool measuring_window_is_early(const struct measuring_window *window, uint64_t now) {
    uint64_t opened_at = __atomic_load_n(&window->opened_at, __ATOMIC_RELAXED);
    return opened_at && now - opened_at < WINDOW_EARLY_NS;
}

static inline void measuring_window_spent(struct measuring_window *window, uint64_t ns) {
    if (__atomic_add_fetch(&window->spent_ns, ns, __ATOMIC_RELAXED) >= WINDOW_SPENT_MOST_NS)
        __atomic_store_n(&window->is_closed, 1, __ATOMIC_RELAXED);
}

#endif
