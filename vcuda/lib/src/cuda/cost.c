#include "cuda/cost.h"

#define PROBES 4

_Static_assert(COST_ENTRIES == 1u << (64 - 54), "a key's upper ten bits are its place");
_Alignas(64) struct cost cost_table[COST_ENTRIES];

/* Beside the table, because launches do not look at it. `key` is of the cost that it was remembered for. */
static struct {
    uint64_t key, at;
    double ns;
    double less;  /* the most of the last `runs_less` runs, which all took less than `ns` */
    double least; /* of the last `runs`, since `runs_from` */
    uint64_t runs_from;
    uint32_t runs, runs_less, told;
    bool is_known; /* it was told of a few times */
} lately[COST_ENTRIES];

/* Threads that race for an entry may both reset it; that costs a measurement. */
static struct cost *claim(struct cost *cost, uint64_t key) {
    __atomic_store_n(&cost->ns, BUCKET_FIRST_GUESS_NS, __ATOMIC_RELAXED);
    __atomic_store_n(&cost->charge_ns, BUCKET_FIRST_GUESS_NS, __ATOMIC_RELAXED);
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
            return claim(cost, key);
        if (cost_seen(cost) < cost_seen(victim))
            victim = cost;
    }
    return claim(victim, key);
}

/* A quarter of the way from the old average to what was measured; all of the way where it begins. Never 0. What is far
 * off, for a thread was stopped between two calls, moves it no more than twice or half of it would: if it was no
 * accident, the next ones are as far off. */
static void average(uint64_t *word, uint64_t ns, bool begins) {
    uint64_t old = __atomic_load_n(word, __ATOMIC_RELAXED);
    uint64_t most = 2 * (old > KERNEL_LEAST_NS ? old : KERNEL_LEAST_NS); /* less was an accident */
    uint64_t near = ns > most ? most : ns < old / 2 ? old / 2 : ns;
    uint64_t new = begins ? ns : (uint64_t)((int64_t)old + ((int64_t)near - (int64_t)old) / 4);
    __atomic_store_n(word, new ? new : 1, __ATOMIC_RELAXED);
}

void cost_measured(struct cost *cost, uint64_t ns, uint64_t charge_ns) {
    uint64_t seen = cost_seen(cost);
    /* A function's first launch may have loaded its code, a thousand times as long: it is forgotten. */
    bool begins = seen < 2;
    average(&cost->ns, ns, begins);
    average(&cost->charge_ns, charge_ns, begins);
    __atomic_store_n(&cost->seen, seen + 1, __ATOMIC_RELAXED);
}

uint64_t cost_lately_ns(const struct cost *cost) {
    const size_t at = (size_t)(cost - cost_table);
    bool known = lately[at].is_known && lately[at].key == __atomic_load_n(&cost->key, __ATOMIC_ACQUIRE);
    return known ? (uint64_t)lately[at].ns : 0;
}

static void know(size_t at, double ns) {
    lately[at].ns = ns;
    lately[at].runs_less = 0;
}

/* Of the first few, and of the first few after a while, the most counts: one of them may have seemed far too short, for
 * it loaded the function's code or its thread was stopped between two calls. */
void cost_remember(struct cost *cost, uint64_t ns, uint64_t now) {
    const size_t at = (size_t)(cost - cost_table);
    uint64_t key = __atomic_load_n(&cost->key, __ATOMIC_ACQUIRE);
    uint64_t age = now > lately[at].at ? now - lately[at].at : 0;
    if (lately[at].key != key) {
        lately[at].key = key;
        lately[at].is_known = false;
        lately[at].told = lately[at].runs = 0;
        know(at, 0);
    }
    if (lately[at].is_known && age > COST_LATELY_NS)
        lately[at].told = 0;
    lately[at].at = now;
    if (lately[at].told == COST_RUNS) {
        lately[at].ns += (double)age / COST_LATELY_NS * ((double)ns - lately[at].ns);
        return;
    }
    if ((double)ns > lately[at].ns)
        know(at, (double)ns);
    lately[at].is_known |= ++lately[at].told == COST_RUNS;
}

/* One alone may be of a thread that was stopped between two calls, and would stand for a minute. */
void cost_was(struct cost *cost, uint64_t ns) {
    const size_t at = (size_t)(cost - cost_table);
    if (lately[at].key != __atomic_load_n(&cost->key, __ATOMIC_ACQUIRE))
        return;
    if ((double)ns >= lately[at].ns) {
        lately[at].runs_less = 0;
        return;
    }
    if (!lately[at].runs_less++ || (double)ns > lately[at].less)
        lately[at].less = (double)ns;
    if (lately[at].runs_less == COST_RUNS)
        know(at, lately[at].less);
}

void cost_was_at_least(struct cost *cost, uint64_t ns, uint64_t now) {
    const size_t at = (size_t)(cost - cost_table);
    if (lately[at].key != __atomic_load_n(&cost->key, __ATOMIC_ACQUIRE))
        return;
    if (!lately[at].runs++ || (double)ns < lately[at].least)
        lately[at].least = (double)ns;
    if (lately[at].runs == 1)
        lately[at].runs_from = now;
    if (now < lately[at].runs_from + COST_LEAST_NS)
        return;
    if (lately[at].runs >= COST_LEAST_RUNS && lately[at].least > lately[at].ns * 9 / 8)
        know(at, lately[at].least);
    lately[at].runs = 0;
}

static uint64_t scaled(uint64_t ns, uint64_t used, uint64_t expected) {
    if (used > 8 * expected)
        used = 8 * expected;
    return (uint64_t)((double)ns * ((double)used / (double)expected));
}

void cost_corrected(struct cost *cost, uint64_t used, uint64_t charged, uint64_t expected) {
    if (expected)
        cost_measured(cost, scaled(cost_ns(cost), used, expected), scaled(cost_ns(cost), charged, expected));
}
