/* Time slices (turns) of best-effort processes on a card: one process at a time launches there, so that a launch of a
 * protected container finds the work of one process in flight, not of each.
 *
 * The kernel manages the turns, as locks on the card's gate file, which containers may only read. The turn is the
 * file's `flock`. A process that waits for the turn holds a read lock on one byte of the file; the number of the byte
 * encodes since when it has waited. So no process writes what another one reads, the turn of a killed process is free
 * at once, and the process that has waited longest is next.
 *
 * A container that never releases its turn gains no more than the card's idle time: the others launch without a turn
 * once they would fall behind their own shares. A process that does so holds a read lock on one more byte for a while,
 * which shows the holder of the turn that its own work may have waited for another process's. */
#ifndef VCUDA_TURN_H
#define VCUDA_TURN_H

#include <stdbool.h>
#include <stdint.h>

#include "descriptor.h"

#define TURN_NS UINT64_C(10000000)           /* a time slice ends after this time if another process waits for one */
#define TURN_LEFT_NS UINT64_C(1000000)       /* work of the previous time slice is usually in flight for no longer */
#define TURN_PATIENCE_NS UINT64_C(100000000) /* a process that has waited for this long stops waiting */
#define TURN_AHEAD_NS UINT64_C(20000000) /* for how long a process publishes that it launched without a time slice */
#define TURN_LAUNCH_NS                                                                                                 \
    UINT64_C(1000000) /* a launch in progress keeps the time slice for this long: it may load code first */

/* A card as this process knows it. */
struct turn {
    bool busy;     /* lock; a thread that finds it taken comes back later */
    bool is_held;  /* this process has the turn, ... */
    bool is_given; /* ... and is about to release it, unless a launch is in progress */
    bool is_none;  /* time slices do not work: the gate file cannot be opened or locked */
    bool is_kept;  /* another process never releases it: this process has stopped waiting */
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
    uint64_t kept_since;  /* since then launches in progress keep it from being released; 0: none do */
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

/* Like turn_hold(), but acquires the turn if it is free, and otherwise waits for one from here on. `path`: of the gate
 * file. */
bool turn_take(struct turn *turn, const char *path, uint64_t now);

/* The launch was made, or was given up for now. */
static inline void turn_let_go(struct turn *turn) {
    __atomic_fetch_sub(&turn->launching, 1, __ATOMIC_RELEASE);
}

/* Record that the process launches in its turn. */
static inline void turn_use(struct turn *turn, uint64_t now) {
    if (!__atomic_load_n(&turn->from, __ATOMIC_RELAXED))
        __atomic_store_n(&turn->from, now, __ATOMIC_RELAXED);
}

/* The gate was closed from `since` to `until`: extend the turn by that. Several threads may report the same time. */
void turn_extend(struct turn *turn, uint64_t since, uint64_t until);

/* True if the process has waited for longer than turns last, closed time excluded: another process never releases its
 * turn. This one then stops waiting for it until it has had a turn. */
bool turn_waits_in_vain(const struct turn *turn, uint64_t now);

/* True if the turn has lasted long enough, or would have before most of the next launch is over, and another process
 * waits. Called by the holder at intervals. `next_ns`: expected duration of the next launch, 0: there is none. */
bool turn_is_over(struct turn *turn, uint64_t next_ns, uint64_t now);

/* Release the turn acquired at `taken_at`. Returns false if it was already released or a launch is still in progress.
 */
bool turn_give(struct turn *turn, uint64_t taken_at, uint64_t now);

static inline uint64_t turn_taken_at(const struct turn *turn) {
    return __atomic_load_n(&turn->taken_at, __ATOMIC_RELAXED);
}

/* Record that the process launched without a turn. `waits_on`: other threads of the process still wait for one. */
void turn_went_ahead(struct turn *turn, bool waits_on, uint64_t now);

/* Release the read lock that publishes a launch without a turn, once that was long enough ago. True: not yet. */
bool turn_tend(struct turn *turn, uint64_t now);

/* True if a launch of this process made at `since` may have waited for another process's work. */
bool turn_others_ran(struct turn *turn, uint64_t since);

/* In the child of a fork: the turn stays the parent's. */
void turn_forget(struct turn *turn);

#endif
