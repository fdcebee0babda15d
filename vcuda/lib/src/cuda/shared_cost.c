#include "cuda/shared_cost.h"

#define FIRST 4       /* launches, the shortest of which is taken for one that did not wait */
#define AVERAGE_IN 16 /* launches */

struct bounds {
    uint64_t least_ns, most_ns;
};

static struct shared_cost {
    uint64_t key; /* of the cost that this is of */
    uint64_t ns;
    uint32_t seen;
    uint32_t looked;     /* at launches that follow own work, up to 256 */
    uint32_t waits_q16;  /* of launches that follow own work, those that took longer than one that did not wait */
    uint32_t longer_q16; /* of launches that follow own work, those that took longer, and less than a turn more */
    uint32_t met_q16;    /* of the others, those that had to wait for others' work */
    /* Of a kind that is longer than a turn, from its last launches, and from as many before: it has no less than the
     * most that any of them surely had, and no more than the shortest of them took. */
    struct bounds bound[2];
    uint32_t bounded;
    /* What is known from launches that began and ended within a time slice of their own: they waited for nobody. */
    struct {
        double weight, length, square; /* sums of weights, of lengths and of their squares, of the last hundreds */
        uint64_t longest_ns[2];        /* of the last, and of as many before */
        uint32_t count;
        double cut; /* of those that began early in their slice, the part that did not end within it */
    } whole;
} shared_costs[COST_ENTRIES];

static uint64_t most(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static uint64_t smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static struct shared_cost *find_or_begin(const struct cost *cost) {
    struct shared_cost *found = &shared_costs[cost - cost_table];
    uint64_t key = __atomic_load_n(&cost->key, __ATOMIC_ACQUIRE);
    if (found->key != key)
        *found = (struct shared_cost){.key = key, .ns = UINT64_MAX};
    return found;
}

#define NEAR_PARTS 8 /* of what its kind takes a launch by itself may take more without having waited */

/* Where others always have work, what follows own work waits for whole turns of theirs or not at all. What ran beside
 * its process's other streams may take twice as long for them. */
static bool has_waited(const struct shared_cost *known, uint64_t took_ns, bool whole_turns, bool by_itself) {
    uint64_t near_ns = known->ns / (by_itself ? NEAR_PARTS : 1) + SHARED_COST_NEAR_NS;
    return took_ns > known->ns + (whole_turns ? SHARED_COST_TURN_NS * 4 / 5 : near_ns);
}

/* A turn begins within a launch by chance, the more often the longer it is, and is over early now and then. What takes
 * longer far more often than that is of such a length itself. */
#define OFTEN_Q16 (65536 / 64)
#define OFTENER_Q2 5

static bool is_often(const struct shared_cost *known, uint32_t part_q16) {
    return part_q16 > OFTEN_Q16 + 65536 / 4 * OFTENER_Q2 * known->ns / SHARED_COST_TURN_NS;
}

static bool is_often_longer(struct shared_cost *known, uint64_t took_ns, bool by_itself) {
    bool waited = has_waited(known, took_ns, false, by_itself);
    bool longer = waited && !has_waited(known, took_ns, true, by_itself);
    known->looked += known->looked < 256;
    known->waits_q16 += ((waited ? 65536 : 0) - (int32_t)known->waits_q16) / (int32_t)known->looked;
    known->longer_q16 += ((longer ? 65536 : 0) - (int32_t)known->longer_q16) / 256;
    return is_often(known, known->longer_q16);
}

/* Of a launch that began in a turn of its own: what it took beyond one whole turn of each other, with the switches. */
static uint64_t beyond_whole_turns(uint64_t took_ns, uint32_t sharers_q8) {
    uint64_t turns_ns = (SHARED_COST_TURN_NS + 2 * SHARED_COST_SWITCH_MOST_NS) * ((sharers_q8 + 255) / 256 - 1);
    return took_ns > turns_ns ? took_ns - turns_ns : 0;
}

/* `charged`: the page says what others are charged; the caller then bounds the wait of such a launch by that.
 * `in_slice`: the launch waited for nobody, so it tells how long its kind takes, as one that follows own work does. */
static uint64_t own_of_kind_ns(struct shared_cost *known, uint64_t took_ns, bool follows, bool in_slice, bool always,
                               bool charged, bool by_itself, uint32_t sharers_q8) {
    if (took_ns < known->ns)
        known->ns =
            known->seen < FIRST || took_ns < known->ns / 2 ? took_ns : known->ns - (known->ns - took_ns) / AVERAGE_IN;
    else if (known->seen >= FIRST && !has_waited(known, took_ns, false, by_itself))
        known->ns += (took_ns - known->ns) / AVERAGE_IN;
    known->seen += known->seen < FIRST;
    if (known->ns > SHARED_COST_TURN_NS || (known->seen < FIRST && !has_waited(known, took_ns, false, by_itself)))
        return 0;
    bool often = (follows || in_slice) && is_often_longer(known, took_ns, by_itself);
    bool whole_turns = follows && (often || always) && !charged;
    if (!has_waited(known, took_ns, whole_turns, by_itself))
        return took_ns;
    uint64_t turns_ns = (uint64_t)shared_cost_turns_ns(sharers_q8) + SHARED_COST_TURN_NS;
    if (took_ns > known->ns * sharers_q8 / 256 + turns_ns)
        return 0; /* longer than its kind: others' turns do not explain it */
    uint64_t own = whole_turns ? beyond_whole_turns(took_ns, sharers_q8) : 0;
    own = own > known->ns ? own : known->ns;
    return own ? own : 1;
}

uint64_t shared_cost_own_ns(const struct cost *cost, uint64_t took_ns, bool follows, bool always, uint32_t sharers_q8) {
    return own_of_kind_ns(find_or_begin(cost), took_ns, follows, false, always, false, false, sharers_q8);
}

/* What others have between two time slices of this process, with the switches. */
static uint64_t others_ns(uint32_t sharers_q8) {
    uint64_t programs = (sharers_q8 + 255) / 256;
    return programs * (SHARED_COST_TURN_NS + SHARED_COST_SWITCH_NS) - SHARED_COST_TURN_NS;
}

/* What a launch that began in a time slice of its own had at least: whole slices, between others' that may be shorter.
 */
static uint64_t least_own_ns(uint64_t took_ns, uint32_t sharers_q8) {
    uint64_t round_ns = SHARED_COST_TURN_NS + others_ns(sharers_q8);
    uint64_t rounds = took_ns / round_ns, rest = took_ns % round_ns;
    return rounds * SHARED_COST_TURN_NS + (rest < SHARED_COST_TURN_NS ? rest : SHARED_COST_TURN_NS);
}

/* Of a launch that had a whole time slice of its own at least, if it took that long. */
static uint64_t from_slice_ns(uint64_t own_ns, uint64_t took_ns, bool always, uint32_t sharers_q8, uint32_t most_q8) {
    if (took_ns <= SHARED_COST_TURN_NS)
        return took_ns;
    if (always)
        return least_own_ns(took_ns, most_q8);
    own_ns = own_ns ? own_ns : took_ns * 256 / sharers_q8;
    return own_ns > SHARED_COST_TURN_NS ? own_ns : SHARED_COST_TURN_NS;
}

static struct bounds bounds_of_kind(const struct shared_cost *known) {
    return (struct bounds){most(known->bound[0].least_ns, known->bound[1].least_ns),
                           smaller(known->bound[0].most_ns, known->bound[1].most_ns)};
}

/* Of a kind that is longer than a turn, what a launch had at least and at most. Where its launches contradict one
 * another it varies, and none tells of others. */
static struct bounds bounds_of_long(struct shared_cost *known, uint64_t took_ns, uint32_t most_q8) {
    uint64_t least = least_own_ns(took_ns, most_q8);
    if (known->bounded++ % AVERAGE_IN == 0) {
        known->bound[1] = known->bounded == 1 ? (struct bounds){0, UINT64_MAX} : known->bound[0];
        known->bound[0] = (struct bounds){0, UINT64_MAX};
    }
    known->bound[0].least_ns = most(known->bound[0].least_ns, least);
    known->bound[0].most_ns = smaller(known->bound[0].most_ns, took_ns);
    struct bounds kind = bounds_of_kind(known);
    return kind.least_ns > kind.most_ns ? (struct bounds){least, took_ns} : kind;
}

#define STEADY_PARTS 4 /* of what it surely has a launch of a steady kind may take more */

uint64_t shared_cost_steady_ns(const struct cost *cost) {
    const struct shared_cost *known = find_or_begin(cost);
    struct bounds kind = bounds_of_kind(known);
    bool steady = kind.least_ns <= kind.most_ns && kind.most_ns - kind.least_ns <= kind.least_ns / STEADY_PARTS;
    return known->bounded && steady ? kind.most_ns : 0;
}

static uint64_t within(uint64_t ns, struct bounds bounds) {
    return smaller(most(ns, bounds.least_ns), bounds.most_ns);
}

/* Others that rest now and then may do so just while this kind of launch is not there: what it meets counts. */
#define MET_OFTEN_Q16 32768

static bool meets_others(struct shared_cost *known, bool waited) {
    known->met_q16 += ((waited ? 65536 : 0) - (int32_t)known->met_q16) / 32;
    return known->met_q16 > MET_OFTEN_Q16;
}

/* So much of others' turns a launch may meet before own work has made room for it. */
#define AHEAD_MOST_NS (8 * (uint64_t)SHARED_COST_TURN_NS)

/* How long others have the card while own work has it for `own_ns`: as many turns for each of its own as there are of
 * them with work on average. */
static uint64_t by_turns_ns(uint64_t own_ns, uint32_t sharers_q8) {
    uint64_t turns_ns = (uint64_t)(sharers_q8 - 256) * (SHARED_COST_TURN_NS + SHARED_COST_SWITCH_NS) / 256;
    return own_ns * turns_ns / SHARED_COST_TURN_NS;
}

/* The same of a launch that was in flight for so long, by what they are charged. */
static uint64_t by_charges_ns(uint64_t in_flight_ns, uint32_t part_q16) {
    return in_flight_ns * part_q16 / 65536;
}

/* What a launch may have waited that makes room for so much itself. */
static uint64_t left_of(uint64_t waited_ns, uint64_t room_ns) {
    return AHEAD_MOST_NS + room_ns - smaller(waited_ns, AHEAD_MOST_NS + room_ns);
}

#define SWITCH_PARTS 4

/* Nobody is charged for the card's switches within a wait; they take a part of it at most. */
static uint64_t less_switches_ns(uint64_t wait_ns, uint64_t switches_ns) {
    return wait_ns - smaller(switches_ns, wait_ns / SWITCH_PARTS);
}

static uint64_t with_switches_ns(uint64_t others_ns, uint64_t switches_ns) {
    return others_ns + smaller(switches_ns, others_ns / (SWITCH_PARTS - 1));
}

/* In how many time slices work of this length runs. */
static uint64_t slices_of(uint64_t own_ns) {
    return most(1, (own_ns + SHARED_COST_TURN_NS / 2) / SHARED_COST_TURN_NS);
}

/* Waits beyond the room for them are remembered up to as much again, not for ever. */
static uint64_t beyond_room(uint64_t waited_ns, uint64_t room_ns) {
    return smaller(waited_ns > room_ns ? waited_ns - room_ns : 0, 2 * AHEAD_MOST_NS);
}

/* What is left of a launch after a wait, for which there must be room if it is `limited`: for a kind that varies by
 * others' charges, since nothing else tells its waits from its work; else by turns of all others that were at work at
 * once, so that what others are charged by mistake is not charged here once more. All waits count against both. */
static uint64_t with_room_ns(struct bounds own_ns, uint64_t took_ns, uint32_t sharers_q8, struct shared_room *room,
                             bool varies, bool limited, bool is_long) {
    /* In each wait the card switches to every other process that has work, and back. */
    uint64_t switches_ns = most(room->most_q8, 512) * (uint64_t)SHARED_COST_SWITCH_NS / 256;
    uint64_t before = less_switches_ns(room->before_ns, switches_ns - SHARED_COST_SWITCH_NS);
    uint64_t charges = by_charges_ns(room->before_ns + took_ns, room->part_q16);
    uint64_t left = left_of(room->waited_ns, 0);
    if (varies) {
        uint64_t rest = charges - smaller(before, charges);
        left = most(left_of(room->varied_ns, rest), is_long ? rest : 0);
        switches_ns *= slices_of(within(took_ns - by_charges_ns(took_ns, room->part_q16), own_ns));
        left = with_switches_ns(left, switches_ns);
    }
    uint64_t own = within(limited ? took_ns - smaller(took_ns, left) : 0, own_ns), wait = took_ns - own;
    uint64_t turns = by_turns_ns(own, room->part_q16 ? room->most_q8 : sharers_q8);
    room->waited_ns = beyond_room(room->waited_ns + wait, turns);
    room->varied_ns = beyond_room(room->varied_ns + before + less_switches_ns(wait, switches_ns), charges);
    return own;
}

/* If all launches of a kind are shorter than a time slice, those that had a slice of their own tell how long the kind
 * takes, whatever others are charged. Long launches seldom end within the slice, so each one that does has a weight:
 * it counts for those of its length that do not. */
#define WHOLE_MOST_NS (SHARED_COST_SLICE_NS * 3 / 4)
#define WHOLE_LEAST 32u /* launches */
#define WHOLE_OVER 512u
/* A launch that begins early in a slice of its own and does not end within it is long. If long launches may take more
 * than one part in so many of a kind's time, the kind varies, however rare they are. */
#define CUT_PARTS 16
#define CUT_OVER 1024

static void learn_whole(struct shared_cost *known, uint64_t took_ns, const struct shared_room *room) {
    if (room->into_ns <= SHARED_COST_SLICE_NS - WHOLE_MOST_NS)
        known->whole.cut += ((room->in_slice ? 0 : 1) - known->whole.cut) / CUT_OVER;
    if (!room->in_slice)
        return;
    if (known->whole.count++ % WHOLE_OVER == 0) {
        known->whole.longest_ns[1] = known->whole.longest_ns[0];
        known->whole.longest_ns[0] = 0;
    }
    known->whole.longest_ns[0] = most(known->whole.longest_ns[0], took_ns);
    double length = (double)smaller(took_ns, WHOLE_MOST_NS), weight = 1 / (1 - length / SHARED_COST_SLICE_NS);
    known->whole.weight += weight - known->whole.weight / WHOLE_OVER;
    known->whole.length += weight * length - known->whole.length / WHOLE_OVER;
    known->whole.square += weight * length * length - known->whole.square / WHOLE_OVER;
}

static bool is_cut(const struct shared_cost *known) {
    return known->whole.weight > 0 &&
           known->whole.cut * SHARED_COST_SLICE_NS * CUT_PARTS > known->whole.length / known->whole.weight;
}

/* What a launch of such a kind had. If it took longer than any that had a slice of its own, it has waited: then it had
 * the mean of the kind, weighted by length, since a long launch is interrupted more often. 0: it is no such kind. */
static uint64_t own_of_whole_ns(const struct shared_cost *known, uint64_t took_ns) {
    uint64_t longest = most(known->whole.longest_ns[0], known->whole.longest_ns[1]);
    if (known->whole.count < WHOLE_LEAST || longest > WHOLE_MOST_NS || is_cut(known))
        return 0;
    longest += longest / NEAR_PARTS + SHARED_COST_NEAR_NS;
    return took_ns <= longest ? took_ns : (uint64_t)(known->whole.square / known->whole.length);
}

uint32_t shared_cost_divisor(const struct cost *cost, uint64_t took_ns, bool follows, bool waited, uint32_t sharers_q8,
                             struct shared_room *room) {
    struct shared_cost *known = find_or_begin(cost);
    uint32_t most_q8 = (uint32_t)most(most(room->most_q8, sharers_q8), 512);
    bool always = sharers_q8 >= most_q8 * 7 / 8, meets = !follows && meets_others(known, waited) && most_q8 == 512;
    bool varies = room->part_q16 && (is_often(known, known->waits_q16) || is_cut(known)),
         limited = varies || (follows && waited);
    uint64_t own_ns =
        own_of_kind_ns(known, took_ns, follows, room->in_slice, always, room->part_q16, room->by_itself, most_q8);
    struct bounds own = {own_ns, took_ns};
    learn_whole(known, took_ns, room);
    bool is_long = !follows && known->seen >= FIRST && known->ns > WHOLE_MOST_NS;
    if (is_long) {
        own = bounds_of_long(known, took_ns, most_q8);
        /* Others' turns may be short ones: what they are charged tells that. */
        limited = varies = room->part_q16;
        if (!limited)
            own.least_ns = within(always || meets ? own.least_ns : took_ns * 256 / sharers_q8, own);
    } else if (!follows && waited) {
        own.least_ns = from_slice_ns(own_ns, took_ns, always || meets, sharers_q8, most_q8);
    }
    uint64_t whole_ns = varies && !room->in_slice ? own_of_whole_ns(known, took_ns) : 0;
    if (whole_ns)
        return (uint32_t)(took_ns * 256 / smaller(whole_ns, took_ns));
    if (room->part_q16 && room->in_slice && own.least_ns)
        own.least_ns = took_ns;
    if (own.least_ns && own.least_ns <= took_ns && (room->part_q16 || limited))
        own.least_ns = with_room_ns(own, took_ns, sharers_q8, room, varies, limited, is_long);
    return own.least_ns ? (uint32_t)(took_ns * 256 / own.least_ns) : sharers_q8;
}
