#include "cuda/alone_cost.h"

#include <stddef.h>

static struct alone_cost {
    uint64_t key; /* of the cost that all of this is of */
    bool is_known;
    double ns;
    struct {
        uint64_t last_at;
        uint32_t first; /* how many of the first few there were */
        uint32_t later; /* and how many after them, which count alike at first */
    } alone;
    struct {
        uint32_t in_row;
        double most;
    } shorter;
    struct {
        uint64_t since;
        uint32_t runs, short_runs; /* of them, so many took less than half of `ns` */
        bool unexplained;          /* one of them */
        uint64_t least[ALONE_COST_RUNS];
    } mixed;
} alone_costs[COST_ENTRIES];

static uint64_t key_of(const struct cost *cost) {
    return __atomic_load_n(&cost->key, __ATOMIC_ACQUIRE);
}

/* NULL: nothing was told of it. */
static struct alone_cost *find(const struct cost *cost) {
    struct alone_cost *found = &alone_costs[cost - cost_table];
    return found->key == key_of(cost) ? found : NULL;
}

static struct alone_cost *find_or_begin(const struct cost *cost) {
    struct alone_cost *found = &alone_costs[cost - cost_table];
    if (found->key != key_of(cost))
        *found = (struct alone_cost){.key = key_of(cost)};
    return found;
}

static void set(struct alone_cost *found, double ns) {
    found->ns = ns;
    found->shorter.in_row = 0;
}

uint64_t alone_cost_ns(const struct cost *cost) {
    const struct alone_cost *found = find(cost);
    return found && found->is_known ? (uint64_t)found->ns : 0;
}

/* Of the first few, and of the first few after a while, the most counts: one of them may have seemed far too short, for
 * it loaded the function's code or its thread was stopped between two calls. */
void alone_cost_ran(const struct cost *cost, uint64_t ns, uint64_t now) {
    struct alone_cost *found = find_or_begin(cost);
    uint64_t age = now > found->alone.last_at ? now - found->alone.last_at : 0;
    found->alone.last_at = now;
    if (found->is_known && age > ALONE_COST_AGE_NS)
        found->alone.first = found->alone.later = 0;
    if (found->alone.first == ALONE_COST_RUNS) {
        double aged = (double)age / ALONE_COST_AGE_NS, even = 1.0 / (2.0 + found->alone.later++);
        found->ns += (aged > even ? aged : even) * ((double)ns - found->ns);
        return;
    }
    if ((double)ns > found->ns)
        set(found, (double)ns);
    found->is_known |= ++found->alone.first == ALONE_COST_RUNS;
}

/* One alone may be of a thread that was stopped between two calls, and would stand for a minute. */
void alone_cost_ran_crossed(const struct cost *cost, uint64_t ns) {
    struct alone_cost *found = find(cost);
    if (!found)
        return;
    if ((double)ns >= found->ns) {
        found->shorter.in_row = 0;
        return;
    }
    if (!found->shorter.in_row++ || (double)ns > found->shorter.most)
        found->shorter.most = (double)ns;
    if (found->shorter.in_row == ALONE_COST_RUNS)
        set(found, found->shorter.most);
}

static void keep_least(uint64_t least[ALONE_COST_RUNS], uint64_t ns) {
    for (int i = 0; i < ALONE_COST_RUNS; i++)
        if (ns < least[i]) {
            uint64_t longer = least[i];
            least[i] = ns;
            ns = longer;
        }
}

/* Only what is far off becomes less by this, and only where many say so: where lengths vary a little the shortest are
 * too short, and a few are of threads that were stopped. */
void alone_cost_ran_mixed(const struct cost *cost, uint64_t ns, bool explained, uint64_t now) {
    struct alone_cost *found = find(cost);
    if (!found)
        return;
    if (!found->mixed.runs++) {
        found->mixed.since = now;
        found->mixed.short_runs = 0;
        found->mixed.unexplained = false;
        for (int i = 0; i < ALONE_COST_RUNS; i++)
            found->mixed.least[i] = UINT64_MAX;
    }
    keep_least(found->mixed.least, ns);
    found->mixed.short_runs += (double)ns < found->ns / 2;
    found->mixed.unexplained |= !explained;
    if (now < found->mixed.since + ALONE_COST_MIXED_NS)
        return;
    const uint64_t few = found->mixed.least[ALONE_COST_RUNS - 1];
    double longer = (double)found->mixed.least[0] / found->ns;
    if (found->mixed.short_runs >= ALONE_COST_RUNS && found->mixed.short_runs >= found->mixed.runs / 4)
        set(found, (double)few);
    else if (found->mixed.runs >= ALONE_COST_MIXED_RUNS && longer > (found->mixed.unexplained ? 9.0 / 8 : 2.0))
        set(found, (double)found->mixed.least[0]);
    found->mixed.runs = 0;
}
