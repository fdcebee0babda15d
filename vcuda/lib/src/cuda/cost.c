#include "cuda/cost.h"

#define PROBES 4

_Static_assert(COST_ENTRIES == 1u << (64 - 54), "a key's upper ten bits are its place");
_Alignas(64) struct cost cost_table[COST_ENTRIES];

/* Threads that race for an entry may both reset it; that costs a measurement. */
static struct cost *enter(struct cost *cost, uint64_t key) {
    __atomic_store_n(&cost->ns, BUCKET_FIRST_GUESS_NS, __ATOMIC_RELAXED);
    __atomic_store_n(&cost->charge_ns, BUCKET_FIRST_GUESS_NS, __ATOMIC_RELAXED);
    __atomic_store_n(&cost->spread_ns, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&cost->seen, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&cost->key, key, __ATOMIC_RELEASE);
    return cost;
}

struct cost *cost_search(uint64_t key) {
    unsigned at = (unsigned)(key >> 54);
    struct cost *victim = &cost_table[at];
    for (unsigned probe = 0; probe < PROBES; probe++) {
        struct cost *cost = &cost_table[(at + probe) % COST_ENTRIES];
        uint64_t found = __atomic_load_n(&cost->key, __ATOMIC_ACQUIRE);
        if (found == key)
            return cost;
        if (!found)
            return enter(cost, key);
        if (cost_seen(cost) < cost_seen(victim))
            victim = cost;
    }
    return enter(victim, key);
}

/* A part of the way from the old average to what was measured. Never 0. */
static void average(uint64_t *word, uint64_t ns, uint64_t weight) {
    uint64_t old = __atomic_load_n(word, __ATOMIC_RELAXED);
    uint64_t new = (uint64_t)((int64_t)old + ((int64_t)ns - (int64_t)old) / (int64_t)weight);
    __atomic_store_n(word, new ? new : 1, __ATOMIC_RELAXED);
}

void cost_measured(struct cost *cost, uint64_t ns, uint64_t charge_ns) {
    uint64_t seen = cost_seen(cost);
    /* A function's first launch may have loaded its code, a thousand times as long: it is forgotten. */
    uint64_t weight = seen < 2 ? 1 : seen < COST_AVERAGE_OVER ? seen : COST_AVERAGE_OVER;
    uint64_t mean = cost_ns(cost);
    average(&cost->spread_ns, seen < 2 ? 0 : ns > mean ? ns - mean : mean - ns, weight);
    if (seen >= COST_AVERAGE_OVER && cost->spread_ns > mean / 2)
        weight = seen < COST_VARIED_OVER ? seen : COST_VARIED_OVER;
    average(&cost->ns, ns, weight);
    average(&cost->charge_ns, charge_ns, weight);
    __atomic_store_n(&cost->seen, seen + 1, __ATOMIC_RELAXED);
}

void cost_measured_more(struct cost *cost, uint64_t charge_ns) {
    uint64_t seen = cost_seen(cost), weight = seen < 1 ? 1 : seen < COST_AVERAGE_OVER ? seen : COST_AVERAGE_OVER;
    uint64_t mean = __atomic_load_n(&cost->charge_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&cost->charge_ns, mean + charge_ns / weight, __ATOMIC_RELAXED);
}
