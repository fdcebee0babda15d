/* Decides when every launch is measured by itself.
 *
 * An event before and after a launch costs the thread and the card a microsecond or two each, too much for kernels of
 * some microseconds. So a process measures short launches only in windows that begin at random: there each of them, on
 * all of its streams. A launch outside a window costs the mean of its kind. Windows give unbiased means whatever the
 * program does, as long as it cannot predict them.
 *
 * Arithmetic only, as in gpu_time.h. */
#ifndef VCUDA_MEASURING_WINDOW_H
#define VCUDA_MEASURING_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

/* Part of a thread's time that measuring may take, in thousandths, while means are unsure and once they are sure.
 * Recording an event takes about as much card time as thread time. */
#define MEASURING_UNSURE_PERMILLE 12
#define MEASURING_SURE_PERMILLE 4
/* The same as a part of the card time of a process that its limit holds back: its thread has time to measure each
 * launch, but what records take of the card is taken from its share. */
#define MEASURING_HELD_PERMILLE 30
#define WINDOW_NS 1000000u
#define WINDOW_SPENT_MOST_NS                                                                                           \
    500000u /* at this much the window closes at once, however late the settling thread checks */

/* All zero: open, so that a process's first launches are measured. */
struct measuring_window {
    uint32_t is_closed; /* read by launching threads */
    uint64_t spent_ns;  /* time spent on measuring since the window opened, added by launching threads */
    uint64_t opened_at; /* 0: never closed yet */
    uint64_t since;     /* time spent is counted from here, ... */
    uint64_t until;     /* ... and judged here */
    uint32_t dice;
    bool unsure; /* the means predict recent measurements poorly; settling thread only */
    /* Only the thread that settles, since the last window closed: card time that the process used, and whether it
     * waited for its limit. */
    uint64_t worked_ns, worked_since;
    bool held;
};

/* Open or close the window if it is due; called by the settling thread at each pass. A window that cost little stays
 * open. */
void measuring_window_turn(struct measuring_window *window, uint64_t now);

static inline bool measuring_window_is_open(const struct measuring_window *window) {
    return !__atomic_load_n(&window->is_closed, __ATOMIC_RELAXED);
}

/* The first launches in a window may run beside earlier, unmeasured ones of other streams. */
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
