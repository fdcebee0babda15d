/* How much of a launch's measured time was its own, where other containers share the card.
 *
 * The card runs one process at a time, in time slices. A short kernel runs within one time slice and takes as long as
 * it would alone, or it first waits for a whole time slice of each other container. So its time is not divided by the
 * number of sharers: it is the kernel's own, or else the duration of launches of its kind that did not wait. Work that
 * is longer than a time slice runs in several, between others' slices.
 *
 * Kept beside the table of costs; only the settling thread calls this. */
#ifndef VCUDA_SHARED_COST_H
#define VCUDA_SHARED_COST_H

#include "cuda/cost.h"

/* An H100's time slices last 2.43 ms (docs/real-card.md). */
#define SHARED_COST_TURN_NS 2430000u
/* A run of work that had to wait for others began with a time slice of its own, which is not shorter than this. */
#define SHARED_COST_SLICE_NS (SHARED_COST_TURN_NS * 7 / 8)
/* What a card takes to turn from one process to another, at most: two that always have work get 84 to 94 % of an H100
 * in turns of 2.4 ms (docs/real-card.md). */
#define SHARED_COST_SWITCH_MOST_NS 150000u
#define SHARED_COST_SWITCH_NS 100000u /* and as a rule */
/* A launch that took longer than its kind by this much, or twice as long, waited for a time slice. */
#define SHARED_COST_NEAR_NS 50000u

/* How much of a launch's `took_ns` was its own: all of it, or what launches of its kind take that did not wait. 0 if
 * time slices of `sharers_q8` / 256 programs do not explain it, or too little is known of the kind. `follows`: it began
 * right behind earlier work of its process. `always`: the others always have work, so such a launch waits for whole
 * time slices or not at all. Call once for each measured launch: it teaches what the kind takes. */
uint64_t shared_cost_own_ns(const struct cost *cost, uint64_t took_ns, bool follows, bool always, uint32_t sharers_q8);

/* How long launches of a card waited for others' time slices, less the room for that; all zero at first. */
struct shared_room {
    uint64_t waited_ns; /* within launches: as many turns as own work has */
    uint64_t varied_ns; /* and before them: the part of the time in flight that others are charged */
    uint64_t before_ns; /* how long the launch waited to begin while nothing of its process ran */
    bool by_itself;     /* it ran beside no other work of its process */
    bool in_slice;      /* it ended before the time slice could be over that its run of work began with, ... */
    uint64_t into_ns;   /* ... so long after whose begin it began; UINT64_MAX: not in one */
    uint32_t part_q16;  /* of a process's time in flight, for what part others were charged meanwhile; 0: not known */
    uint32_t most_q8;   /* the greatest number of containers with work at the same time, x 256, lately */
};

/* The divisor x 256 for the time of a launch, by shared_cost_own_ns(), beside `sharers_q8` / 256 containers; seven
 * eighths of the most at once always have work, and so has one that a kind finds at work as a rule. `waited`: it had to
 * wait for others' work. If it followed no work of its process, it began with a time slice of its own then: up to a
 * slice is its own, and what is longer is divided by slices, else evenly. If it was queued behind such work, it waited
 * no longer than there is `room`. */
uint32_t shared_cost_divisor(const struct cost *cost, uint64_t took_ns, bool follows, bool waited, uint32_t sharers_q8,
                             struct shared_room *room);

/* What launches of a kind that is longer than a time slice take alone, where its last launches leave little doubt of
 * it, whatever others are charged; else 0. */
uint64_t shared_cost_steady_ns(const struct cost *cost);

/* The longest total of other containers' time slices that a launch may wait for. */
static inline int64_t shared_cost_turns_ns(uint32_t sharers_q8) {
    return (int64_t)SHARED_COST_TURN_NS * 5 / 4 * ((sharers_q8 - 1) / 256);
}

#endif
