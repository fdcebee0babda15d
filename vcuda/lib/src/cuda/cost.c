#include "cuda/cost.h"

#define ENTRIES 1024
#define PROBES 4

static struct cost table[ENTRIES];

/* Threads that race for an entry may both reset it; that costs a measurement. */
static struct cost *claim(struct cost *cost, uint64_t key) {
    __atomic_store_n(&cost->ns, BUCKET_FIRST_GUESS_NS, __ATOMIC_RELAXED);
    __atomic_store_n(&cost->seen, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&cost->key, key, __ATOMIC_RELEASE);
    return cost;
}

struct cost *cost_find(uint64_t key) {
    unsigned at = (unsigned)(key >> 54);
    struct cost *victim = &table[at];
    for (unsigned probe = 0; probe < PROBES; probe++) {
        struct cost *cost = &table[(at + probe) % ENTRIES];
        uint64_t found = __atomic_load_n(&cost->key, __ATOMIC_ACQUIRE);
        if (found == key)
            return cost;
        if (!found)
            return claim(cost, key);
        if (cost_seen(cost) < cost_seen(victim))
            victim = cost;
    }
    return claim(victim, key);
}

void cost_measured(struct cost *cost, uint64_t ns) {
    uint64_t old = cost_ns(cost), seen = cost_seen(cost);
    uint64_t new = seen ? (uint64_t)((int64_t)old + ((int64_t)ns - (int64_t)old) / 4) : ns;
    __atomic_store_n(&cost->ns, new ? new : 1, __ATOMIC_RELAXED);
    __atomic_store_n(&cost->seen, seen + 1, __ATOMIC_RELAXED);
}

void cost_corrected(struct cost *cost, uint64_t used, uint64_t expected) {
    uint64_t old = cost_ns(cost);
    if (!expected)
        return;
    if (used > 8 * expected)
        used = 8 * expected;
    double ratio = (double)used / (double)expected;
    cost_measured(cost, (uint64_t)((double)old * ratio));
}
