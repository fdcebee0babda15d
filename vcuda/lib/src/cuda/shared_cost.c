#include "cuda/shared_cost.h"

#define FIRST 4       /* launches, the shortest of which is taken for one that did not wait */
#define AVERAGE_IN 16 /* launches */

static struct shared_cost {
    uint64_t key; /* of the cost that this is of */
    uint64_t ns;
    uint32_t seen;
    uint32_t
        longer_q16; /* of launches that follow own work, how many took longer than known and less than a turn more */
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

/* A turn begins within a launch by chance, the more often the longer it is, and is over early now and then. What takes
 * longer far more often than that is of such a length itself. */
#define OFTEN_Q16 (65536 / 32)
#define OFTENER 4

static bool is_often_longer(struct shared_cost *known, uint64_t took_ns) {
    bool longer = has_waited(known, took_ns, false) && !has_waited(known, took_ns, true);
    known->longer_q16 += ((longer ? 65536 : 0) - (int32_t)known->longer_q16) / 64;
    return known->longer_q16 > OFTEN_Q16 + OFTENER * 65536 * known->ns / SHARED_COST_TURN_NS;
}

/* Of a launch that began in a turn of its own: what it took beyond one whole turn of each other, with the switches. */
static uint64_t beyond_whole_turns(uint64_t took_ns, uint32_t sharers_q8) {
    uint64_t turns_ns = (SHARED_COST_TURN_NS + 2 * SHARED_COST_SWITCH_MOST_NS) * ((sharers_q8 + 255) / 256 - 1);
    return took_ns > turns_ns ? took_ns - turns_ns : 0;
}

uint64_t shared_cost_own_ns(const struct cost *cost, uint64_t took_ns, bool follows, bool always, uint32_t sharers_q8) {
    struct shared_cost *known = find_or_begin(cost);
    if (took_ns < known->ns)
        known->ns =
            known->seen < FIRST || took_ns < known->ns / 2 ? took_ns : known->ns - (known->ns - took_ns) / AVERAGE_IN;
    else if (known->seen >= FIRST && !has_waited(known, took_ns, false))
        known->ns += (took_ns - known->ns) / AVERAGE_IN;
    known->seen += known->seen < FIRST;
    if (known->seen < FIRST || known->ns > SHARED_COST_TURN_NS)
        return 0;
    bool often = follows && is_often_longer(known, took_ns), whole_turns = often || (follows && always);
    if (!has_waited(known, took_ns, whole_turns))
        return took_ns;
    uint64_t turns_ns = (uint64_t)shared_cost_turns_ns(sharers_q8) + SHARED_COST_TURN_NS;
    if (took_ns > known->ns * sharers_q8 / 256 + turns_ns)
        return 0; /* longer than its kind: others' turns do not explain it */
    uint64_t own = whole_turns ? beyond_whole_turns(took_ns, sharers_q8) : 0;
    own = own > known->ns ? own : known->ns;
    return own ? own : 1;
}

/* Of a long launch that began in a time slice of its own: its own slices and the others' take turns until it ends. */
static uint64_t in_slices_ns(uint64_t took_ns, uint32_t sharers_q8) {
    uint64_t round_ns = (uint64_t)SHARED_COST_TURN_NS * ((sharers_q8 + 255) / 256), rest = took_ns % round_ns;
    return took_ns / round_ns * SHARED_COST_TURN_NS + (rest < SHARED_COST_TURN_NS ? rest : SHARED_COST_TURN_NS);
}

/* Of a launch that had a whole time slice of its own at least, if it took that long. */
static uint64_t from_slice_ns(uint64_t own_ns, uint64_t took_ns, uint32_t sharers_q8) {
    if (took_ns <= SHARED_COST_TURN_NS)
        return took_ns;
    if (sharers_q8 >= ALWAYS_Q8)
        return in_slices_ns(took_ns, sharers_q8);
    own_ns = own_ns ? own_ns : took_ns * 256 / sharers_q8;
    return own_ns > SHARED_COST_TURN_NS ? own_ns : SHARED_COST_TURN_NS;
}

uint32_t shared_cost_divisor(const struct cost *cost, uint64_t took_ns, bool follows, bool in_slice,
                             uint32_t sharers_q8) {
    uint64_t own_ns = shared_cost_own_ns(cost, took_ns, follows, sharers_q8 >= ALWAYS_Q8, sharers_q8);
    if (in_slice)
        own_ns = from_slice_ns(own_ns, took_ns, sharers_q8);
    return own_ns ? (uint32_t)(took_ns * 256 / own_ns) : sharers_q8;
}
