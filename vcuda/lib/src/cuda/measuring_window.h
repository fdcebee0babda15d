/* Decides when every launch is measured by itself.
 *
 * An event before and after a launch costs the thread and the card a microsecond or two each, too much for kernels of
 * some microseconds. So a process measures short launches only in windows: there each of them, on all of its streams. A
 * launch outside a window costs the mean of its kind. Time is cut into slots of a millisecond, and each
 * slot is a window by chance, one in `every` on average. Whatever a program does, and however long it pauses, each of
 * its launches lies in a window as probably as any other: means are unbiased. (If a window stayed open until a launch
 * came, launches after a pause would be measured too often.)
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
    uint32_t is_closed; /* what the last look found; read by launching threads */
    uint32_t every_q8;  /* one slot in so many, in 256ths, is a window; up to 256: each is */
    uint64_t spent_ns;  /* time spent on measuring since the settling thread counted it, added by launching threads */
    uint64_t opened_at; /* 0: never closed yet */
    uint64_t seed;
    /* Only the settling thread: */
    uint64_t slot;             /* the one in which it counted last */
    double spent, open;        /* ns that recent windows cost, and for which they were open */
    double part;               /* of a thread's time that measuring may take */
    bool unsure;               /* the means predict recent measurements poorly */
    bool held;                 /* the process waited for its limit */
    uint64_t worked_ns, since; /* card time that the process used since `part` was set, and when that was */
};

/* Count what windows cost until now, and set how many there may be; called by the settling thread at each pass. */
void measuring_window_turn(struct measuring_window *window, uint64_t now);

/* Is there a window now? Any thread. */
bool measuring_window_look(struct measuring_window *window, uint64_t now);

/* The same as of the last look, without a clock. */
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
