/* Time slices of best-effort processes on a card: one process at a time launches there, so that a launch of a protected
 * container finds the work of one process in flight, not of each.
 *
 * The kernel keeps the turns, as locks on the card's gate file, which containers may only read. The turn is the file's
 * `flock`. A process that waits for it holds a read lock on one byte of the file: the byte's number is the time since
 * which it has waited. So no process writes what another one reads, the turn of a killed process is free at once, and
 * the process that has waited longest is next.
 * A container that never gives its turn back gains no more than the card's idle time: the others launch without a turn
 * once they would fall behind their own shares. A process that does so holds a read lock on one more byte for a while.
 * By that the holder of the turn knows that its own work may have waited for another process's.
 */
#ifndef VCUDA_TURN_H
#define VCUDA_TURN_H

#include <stdbool.h>
#include <stdint.h>

#include "descriptor.h"

#define TURN_NS UINT64_C(10000000)           /* a turn ends after so long if another process waits for one */
#define TURN_LEFT_NS UINT64_C(1000000)       /* work of the turn before may be in flight for so long, as a rule */
#define TURN_PATIENCE_NS UINT64_C(100000000) /* a process that has waited for so long waits in vain */
#define TURN_AHEAD_NS UINT64_C(20000000)     /* a process that launched without a turn tells so for so long */
#define TURN_LAUNCH_NS UINT64_C(1000000) /* a launch on its way keeps the turn for so long: it may load code first */

/* A card as this process knows it. */
struct turn {
    bool busy;     /* lock; a thread that finds it taken comes back later */
    bool is_held;  /* this process has the turn, ... */
    bool is_given; /* ... and is about to release it, unless a launch is on its way */
    bool is_none;  /* there are no turns: the gate file cannot be opened or locked */
    bool is_kept;  /* another process never releases it: this one has waited in vain */
    bool is_open;  /* `fd` is this process's, of `file` */
    int fd;
    uint64_t since;       /* when the process began to wait; 0: it does not wait */
    uint64_t stood_ns;    /* part of that wait during which the gate was closed */
    uint64_t left_since;  /* the wait that it gave up to launch without a turn: it began then, ... */
    uint64_t left_at;     /* ... ended at this time, and goes on if the process comes back soon */
    uint64_t taken_at;    /* when the process acquired its turn */
    uint64_t ahead_at;    /* when it last launched without a turn; 0: long ago */
    uint64_t from;        /* when its turn began, with the first launch; 0: not yet */
    uint64_t stood_until; /* the turn has been extended for all closed time before this */
    uint64_t kept_since;  /* since then launches on their way keep it from being released; 0: they do not */
    uint32_t asking;      /* threads that wait for it */
    uint32_t launching;   /* threads that have acquired it and have not launched yet */
    struct descriptor_file file;
};

static inline bool turn_is_held(const struct turn *turn) {
    return __atomic_load_n(&turn->is_held, __ATOMIC_ACQUIRE);
}

/* True if this process has the turn, which it then keeps until turn_let_go(). A thread that releases the turn reads the
 * two words in the other order, so one of both threads sees the other. */
static inline bool turn_hold(struct turn *turn) {
    __atomic_fetch_add(&turn->launching, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&turn->is_held, __ATOMIC_SEQ_CST) && !__atomic_load_n(&turn->is_given, __ATOMIC_SEQ_CST))
        return true;
    __atomic_fetch_sub(&turn->launching, 1, __ATOMIC_RELEASE);
    return false;
}

/* The same; acquires the turn if it is free, and else waits for one from here on. `path`: the gate file's. */
bool turn_take(struct turn *turn, const char *path, uint64_t now);

/* The launch is made, or is given up for now. */
static inline void turn_let_go(struct turn *turn) {
    __atomic_fetch_sub(&turn->launching, 1, __ATOMIC_RELEASE);
}

/* The process launches in its turn. */
static inline void turn_use(struct turn *turn, uint64_t now) {
    if (!__atomic_load_n(&turn->from, __ATOMIC_RELAXED))
        __atomic_store_n(&turn->from, now, __ATOMIC_RELAXED);
}

/* The gate was closed in between: extend the turn by that. Several threads may report the same time. */
void turn_extend(struct turn *turn, uint64_t since, uint64_t until);

/* True if the process has waited for longer than turns last, closed time apart: another process never releases its
 * turn. This one then waits for it no more until it has had one. */
bool turn_waits_in_vain(const struct turn *turn, uint64_t now);

/* True if the turn has lasted long enough, or would have before most of the next launch is over, and another process
 * waits. The holder calls this now and then. `next_ns`: the length of the next launch, 0: there is none. */
bool turn_is_over(struct turn *turn, uint64_t next_ns, uint64_t now);

/* Release the turn acquired at `taken_at`. Returns false if it was already released or a launch is still on its way. */
bool turn_give(struct turn *turn, uint64_t taken_at, uint64_t now);

static inline uint64_t turn_taken_at(const struct turn *turn) {
    return __atomic_load_n(&turn->taken_at, __ATOMIC_RELAXED);
}

/* The process launched without a turn, now. `waits_on`: other threads of it still wait for one. */
void turn_went_ahead(struct turn *turn, bool waits_on, uint64_t now);

/* Release the read lock that tells of a launch without a turn once that is long enough ago. True: not yet. */
bool turn_tend(struct turn *turn, uint64_t now);

/* True if a launch of this process made at `since` may have waited for another process's work. */
bool turn_others_ran(struct turn *turn, uint64_t since);

/* In the child of a fork: the turn stays the parent's. */
void turn_forget(struct turn *turn);

#endif
