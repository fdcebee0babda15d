#include "cuda/measuring_window.h"

#define EVERY_MOST 250 /* slots */
#define WINDOWS 16.0   /* what they cost on average is judged over so many */
#define SLOTS_LATE 64  /* that the settling thread counts at a time: it rests with the program */

/* splitmix64: programs cannot foretell a window. */
static uint64_t roll(uint64_t number) {
    number += UINT64_C(0x9e3779b97f4a7c15);
    number = (number ^ number >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    number = (number ^ number >> 27) * UINT64_C(0x94d049bb133111eb);
    return number ^ number >> 31;
}

static bool is_window(const struct measuring_window *window, uint64_t slot) {
    uint64_t every = __atomic_load_n(&window->every_q8, __ATOMIC_RELAXED);
    return every <= 256 || (roll(window->seed + slot) >> 32) * every >> 40 == 0;
}

/* The part of the thread's time that measuring may take from now on. */
static double part_of(struct measuring_window *window, uint64_t now) {
    double part = (window->unsure ? MEASURING_UNSURE_PERMILLE : MEASURING_SURE_PERMILLE) / 1000.0;
    if (window->held && window->since && now > window->since) {
        double held = MEASURING_HELD_PERMILLE / 1000.0 * (double)window->worked_ns / (double)(now - window->since);
        part = held < part ? held : part;
    }
    window->since = now;
    window->worked_ns = 0;
    window->unsure = window->held = false;
    return part;
}

static void count(struct measuring_window *window, uint64_t slot, uint64_t now) {
    uint64_t spent = __atomic_exchange_n(&window->spent_ns, 0, __ATOMIC_RELAXED);
    uint64_t at = window->slot && slot - window->slot < SLOTS_LATE ? window->slot : slot - 1;
    for (; at < slot; at++)
        if (is_window(window, at)) {
            window->spent *= 1 - 1 / WINDOWS;
            window->open = window->open * (1 - 1 / WINDOWS) + WINDOW_NS;
        }
    window->slot = slot;
    window->spent += (double)spent;
    if (spent || !window->since)
        window->part = part_of(window, now);
    double every = window->spent / (window->open > WINDOW_NS ? window->open : WINDOW_NS) / window->part;
    __atomic_store_n(&window->every_q8, (uint32_t)((every < EVERY_MOST ? every : EVERY_MOST) * 256), __ATOMIC_RELAXED);
}

bool measuring_window_look(struct measuring_window *window, uint64_t now) {
    bool open = is_window(window, now / WINDOW_NS) &&
                __atomic_load_n(&window->spent_ns, __ATOMIC_RELAXED) < WINDOW_SPENT_MOST_NS;
    if (open == measuring_window_is_open(window))
        return open;
    if (open)
        __atomic_store_n(&window->opened_at, now, __ATOMIC_RELAXED);
    __atomic_store_n(&window->is_closed, !open, __ATOMIC_RELAXED);
    return open;
}

void measuring_window_turn(struct measuring_window *window, uint64_t now) {
    uint64_t slot = now / WINDOW_NS;
    if (!window->seed)
        window->seed = roll(now);
    if (slot > window->slot)
        count(window, slot, now);
    measuring_window_look(window, now);
}
