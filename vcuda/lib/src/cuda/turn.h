/* Turns of best-effort containers on a card, one process at a time: so that what is launched in a protected container
 * finds the work of one of them in flight, not of each.
 *
 * The kernel keeps them, as locks on the card's gate, which containers may only read: the turn is its `flock`, and who
 * waits for it holds a read lock on the byte that is the time since when. So nobody writes what another one reads, the
 * turn of a process that is killed is free at once, and who has waited longest is next.
 * A container that keeps the turn takes no more by it than the card's idle time: the others pass without once they
 * would fall behind their own shares. Who does so holds a read lock on one byte for a while, so that whoever has the
 * turn knows that its own work may have waited for another's.
 */
#ifndef VCUDA_TURN_H
#define VCUDA_TURN_H

#include <stdbool.h>
#include <stdint.h>

#include "descriptor.h"

#define TURN_NS UINT64_C(10000000)           /* a turn is over after so long, where others wait for one */
#define TURN_LEFT_NS UINT64_C(1000000)       /* of the one before something may be in flight for so long, as a rule */
#define TURN_PATIENCE_NS UINT64_C(100000000) /* who has waited for so long does so in vain */
#define TURN_AHEAD_NS UINT64_C(20000000)     /* who has gone ahead without says so for so long */
#define TURN_LAUNCH_NS UINT64_C(1000000) /* a launch on its way keeps the turn for so long: it may load code first */

/* A card as this process knows it. */
struct turn {
    bool busy;     /* lock; whoever finds it taken comes back later */
    bool is_held;  /* the turn is this process's, ... */
    bool is_given; /* ... and about to be given, unless a launch is on its way */
    bool is_none;  /* there are no turns: the gate cannot be opened or locked */
    bool is_kept;  /* by another one: this process has waited in vain */
    bool is_open;  /* `fd` is this process's, of `file` */
    int fd;
    uint64_t since;       /* when it began to wait; 0: it does not */
    uint64_t stood_ns;    /* of it, while the gate was closed */
    uint64_t left_since;  /* it left its place of then to go ahead, ... */
    uint64_t left_at;     /* ... at this time, and has it again if it comes back soon */
    uint64_t taken_at;    /* when it got its turn */
    uint64_t ahead_at;    /* when it last went ahead without; 0: long ago */
    uint64_t from;        /* when its turn began, with the first launch; 0: not yet */
    uint64_t stood_until; /* what its time has been extended by lies before this */
    uint64_t kept_since;  /* it would have been given then, but for launches on their way; 0: it was not to be */
    uint32_t asking;      /* threads that wait */
    uint32_t launching;   /* threads that have found it theirs and have not launched yet */
    struct descriptor_file file;
};

static inline bool turn_is_held(const struct turn *turn) {
    return __atomic_load_n(&turn->is_held, __ATOMIC_ACQUIRE);
}

/* Is it this process's turn? Then it stays so until turn_let_go(). Who gives it looks at the two words in the other
 * order: one of both finds the other. */
static inline bool turn_hold(struct turn *turn) {
    __atomic_fetch_add(&turn->launching, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&turn->is_held, __ATOMIC_SEQ_CST) && !__atomic_load_n(&turn->is_given, __ATOMIC_SEQ_CST))
        return true;
    __atomic_fetch_sub(&turn->launching, 1, __ATOMIC_RELEASE);
    return false;
}

/* The same, or is it its turn now? It waits for one from here on if not. `path`: the gate's. */
bool turn_take(struct turn *turn, const char *path, uint64_t now);

/* What was to be launched is launched, or is not to be now. */
static inline void turn_let_go(struct turn *turn) {
    __atomic_fetch_sub(&turn->launching, 1, __ATOMIC_RELEASE);
}

/* The process launches something in its turn. */
static inline void turn_use(struct turn *turn, uint64_t now) {
    if (!__atomic_load_n(&turn->from, __ATOMIC_RELAXED))
        __atomic_store_n(&turn->from, now, __ATOMIC_RELAXED);
}

/* The gate was closed then: that was nobody's time. Several threads may say so of the same time. */
void turn_extend(struct turn *turn, uint64_t since, uint64_t until);

/* Has it waited for longer than turns take, less what was nobody's time? Somebody keeps the turn; it is not waited for
 * any more until it was had. */
bool turn_waits_in_vain(const struct turn *turn, uint64_t now);

/* Has the process had its turn, or would it have for most of what comes next, and does another one wait? Called now and
 * then by who holds it. `next_ns`: what it is about to launch, 0: nothing. */
bool turn_is_over(struct turn *turn, uint64_t next_ns, uint64_t now);

/* Give the turn back that was had at `taken_at`: others may be waiting for it. False: it was given, or is kept for a
 * launch that is on its way. */
bool turn_give(struct turn *turn, uint64_t taken_at, uint64_t now);

static inline uint64_t turn_taken_at(const struct turn *turn) {
    return __atomic_load_n(&turn->taken_at, __ATOMIC_RELAXED);
}

/* The process went ahead without the turn, now. `waits_on`: others of its threads wait for it still. */
void turn_went_ahead(struct turn *turn, bool waits_on, uint64_t now);

/* What was said of going ahead is taken back in time. True: not yet. */
bool turn_tend(struct turn *turn, uint64_t now);

/* May what this process launched at `since` have waited for work of another one? */
bool turn_others_ran(struct turn *turn, uint64_t since);

/* In the child of a fork: the turn is the parent's. */
void turn_forget(struct turn *turn);

#endif
