#include "cuda/measuring_window.h"

#define PAUSE_LEAST_NS 500000u
#define PAUSE_MOST_NS 250000000u

/* xorshift: programs cannot foretell when a window begins. */
static uint32_t roll(struct measuring_window *window, uint64_t now) {
    if (!window->dice)
        window->dice = (uint32_t)(now * UINT64_C(0x9e3779b97f4a7c15) >> 32) | 1;
    window->dice ^= window->dice << 13;
    window->dice ^= window->dice >> 17;
    window->dice ^= window->dice << 5;
    return window->dice;
}

/* The part of the thread's time that measuring may take until the next window. */
static double part_of(struct measuring_window *window, uint64_t now) {
    double part = (window->unsure ? MEASURING_UNSURE_PERMILLE : MEASURING_SURE_PERMILLE) / 1000.0;
    if (window->held && window->worked_since && now > window->worked_since) {
        double held =
            MEASURING_HELD_PERMILLE / 1000.0 * (double)window->worked_ns / (double)(now - window->worked_since);
        part = held < part ? held : part;
    }
    window->worked_since = now;
    window->worked_ns = 0;
    window->unsure = window->held = false;
    return part;
}

void measuring_window_turn(struct measuring_window *window, uint64_t now) {
    bool is_spent = __atomic_load_n(&window->spent_ns, __ATOMIC_RELAXED) >= WINDOW_SPENT_MOST_NS;
    if (now < window->until && !is_spent)
        return;
    if (!measuring_window_is_open(window) && !is_spent) {
        __atomic_store_n(&window->opened_at, now, __ATOMIC_RELAXED);
        __atomic_store_n(&window->is_closed, 0, __ATOMIC_RELAXED);
        window->until = now + WINDOW_NS;
        window->since = now;
        return;
    }
    uint64_t spent = __atomic_exchange_n(&window->spent_ns, 0, __ATOMIC_RELAXED);
    double least = (double)spent / ((double)PAUSE_MOST_NS * 2), part = part_of(window, now);
    uint64_t earned = now - window->since, due = spent ? (uint64_t)((double)spent / (part > least ? part : least)) : 0;
    uint64_t pause = due > earned && window->since ? due - earned : 0;
    window->since = now;
    if (pause < PAUSE_LEAST_NS) {
        window->until = now + WINDOW_NS;
        return;
    }
    if (pause > PAUSE_MOST_NS)
        pause = PAUSE_MOST_NS;
    window->until = now + pause / 2 + (uint64_t)((double)pause * roll(window, now) / 4294967296.0);
    __atomic_store_n(&window->is_closed, 1, __ATOMIC_RELAXED);
}
