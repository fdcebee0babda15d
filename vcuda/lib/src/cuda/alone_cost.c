#include "cuda/alone_cost.h"

#include <stddef.h>

static struct alone_cost {
    uint64_t key; /* of the cost that all of this is of */
    bool is_known;
    double ns;
    struct {
        uint64_t last_at;
        uint32_t first; /* how many of the first few there were */
    } alone;
    struct {
        uint32_t in_row;
        double most;
    } shorter;
    struct {
        uint64_t since;
        uint32_t runs;
        bool unexplained; /* one of them */
        uint64_t least, second;
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
        found->alone.first = 0;
    if (found->alone.first == ALONE_COST_RUNS) {
        found->ns += (double)age / ALONE_COST_AGE_NS * ((double)ns - found->ns);
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

/* The second least lowers what is known, for the least may be of a thread that was stopped; and only what is far off,
 * for where lengths vary a little it would be too short. */
void alone_cost_ran_mixed(const struct cost *cost, uint64_t ns, bool explained, uint64_t now) {
    struct alone_cost *found = find(cost);
    if (!found)
        return;
    if (!found->mixed.runs++) {
        found->mixed.since = now;
        found->mixed.least = found->mixed.second = UINT64_MAX;
        found->mixed.unexplained = false;
    }
    if (ns < found->mixed.least) {
        found->mixed.second = found->mixed.least;
        found->mixed.least = ns;
    } else if (ns < found->mixed.second) {
        found->mixed.second = ns;
    }
    found->mixed.unexplained |= !explained;
    if (now < found->mixed.since + ALONE_COST_MIXED_NS)
        return;
    if ((double)found->mixed.second < found->ns / 2)
        set(found, (double)found->mixed.second);
    else if (found->mixed.runs >= ALONE_COST_MIXED_RUNS && found->mixed.unexplained &&
             (double)found->mixed.least > found->ns * 9 / 8)
        set(found, (double)found->mixed.least);
    found->mixed.runs = 0;
}
