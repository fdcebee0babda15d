#include "cuda/shared_cost.h"

#define FIRST 4       /* launches, the shortest of which is taken for one that did not wait */
#define AVERAGE_IN 16 /* launches */

static struct shared_cost {
    uint64_t key; /* of the cost that this is of */
    uint64_t ns;
    uint32_t seen;
} shared_costs[COST_ENTRIES];

static struct shared_cost *find_or_begin(const struct cost *cost) {
    struct shared_cost *found = &shared_costs[cost - cost_table];
    uint64_t key = __atomic_load_n(&cost->key, __ATOMIC_ACQUIRE);
    if (found->key != key)
        *found = (struct shared_cost){.key = key, .ns = UINT64_MAX};
    return found;
}

/* Where others always have work, what follows own work waits for whole turns of theirs or not at all. */
#define ALWAYS_Q8 (256 * 7 / 4)

static bool has_waited(const struct shared_cost *known, uint64_t took_ns, bool whole_turns) {
    uint64_t near_ns = whole_turns ? SHARED_COST_TURN_NS * 4 / 5 : known->ns + SHARED_COST_NEAR_NS;
    return took_ns > known->ns + near_ns;
}

uint32_t shared_cost_divisor(const struct cost *cost, uint64_t took_ns, bool follows, uint32_t sharers_q8) {
    struct shared_cost *known = find_or_begin(cost);
    bool whole_turns = follows && sharers_q8 >= ALWAYS_Q8;
    if (took_ns < known->ns)
        known->ns =
            known->seen < FIRST || took_ns < known->ns / 2 ? took_ns : known->ns - (known->ns - took_ns) / AVERAGE_IN;
    else if (known->seen >= FIRST && !has_waited(known, took_ns, false))
        known->ns += (took_ns - known->ns) / AVERAGE_IN;
    known->seen += known->seen < FIRST;
    if (known->seen < FIRST || known->ns >= SHARED_COST_TURN_NS / 2)
        return sharers_q8;
    if (!has_waited(known, took_ns, whole_turns))
        return 256;
    uint64_t turns_ns = (uint64_t)shared_cost_turns_ns(sharers_q8) + SHARED_COST_TURN_NS;
    if (took_ns > known->ns * sharers_q8 / 256 + turns_ns)
        return sharers_q8; /* longer than its kind: others' turns do not explain it */
    uint64_t own = known->ns ? known->ns : 1;
    return (uint32_t)(took_ns * 256 / own);
}
