/* Decides whether a launch of a best-effort container may go ahead, or what it waits for: one check of the card's gate,
 * of the time slices and of the work in flight. gate.h has the arithmetic; gate_wait.h and gate_deferred.h repeat the
 * check. */
#ifndef VCUDA_GATE_PASSAGE_H
#define VCUDA_GATE_PASSAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda/stream_meter.h"
#include "cuda/turn.h"
#include "page.h"

enum gate_passage { GATE_PASSES, GATE_WAITS_FOR_ROOM, GATE_WAITS_FOR_TURN, GATE_IS_CLOSED };

/* A launch to be checked, and the result of the check. Times in ns. Deferred launches go before launches that may still
 * be deferred. A launch that cannot be deferred waits for the work in flight only. */
struct gate_look {
    int card;
    const struct vcuda_card_limits *limits;
    struct vcuda_card_usage *usage;
    const struct vcuda_gate *gate; /* NULL: the container has no gate, or none yet */
    uint64_t launch_ns;            /* the launch's expected duration */
    bool is_deferred;              /* the launch waits on its stream; the call has returned */
    bool may_defer;                /* the launch can be deferred */
    bool is_unknown; /* the kind was never measured: it may be long, so it launches with nothing else in flight */
    uint64_t now;
    bool is_closed;       /* the gate is closed */
    bool others_deferred; /* other launches of this process are deferred */
    bool has_turn;    /* the launch uses the process's time slice, which cannot be released before gate_launched() */
    uint64_t room_ns; /* how long to wait for the work in flight; 0: do not wait */
};

/* Check again, at `now`. False: there is nothing left to wait for, because the card does not have both protected and
 * best-effort containers. */
bool gate_look_again(struct gate_look *look, uint64_t now);

/* The decision of the last check. */
enum gate_passage gate_look_passage(struct gate_look *look);

/* Sleep until the result may have changed; for at most `most_ns` where the wait is for other containers. */
void gate_look_rest(const struct gate_look *look, enum gate_passage passage, uint64_t most_ns);

/* Nothing in flight ends: the program may have to launch more first. Afterwards the check reports room. */
void gate_look_is_stuck(struct gate_look *look);

/* Call when a launch starts and stops waiting, in its call or on its stream. While any launch waits, the process keeps
 * its time slice, or its place in the queue for one. */
void gate_launch_comes(struct gate_look *look);
void gate_launch_goes(struct gate_look *look);

/* Call once a launch made in the process's time slice is in flight. */
void gate_launched(int card);

/* Call when a thread is about to launch: from now on the container has work, so elapsed time does not count as idle. */
void gate_wanted(const struct stream_meter *meter);

/* Release time slices that are over or that the process no longer uses. Called by the helper thread between two passes.
 * True: call again soon. */
bool gate_tend(void);

/* The gate was closed from `since` to `until`; that time does not count against the process's time slice. */
void gate_turn_stood_still(int card, uint64_t since, uint64_t until);

/* True if a launch made at `since` may have waited for another best-effort container's work. */
bool gate_others_ran(int card, uint64_t since);

/* Count `ns` of launched work as deferred at the gate (gate_deferred.h), hence not in flight; gate_defers_no_more()
 * ends that, gate_deferred_ns() returns the sum. */
void gate_defers(int card, uint64_t ns);
void gate_defers_no_more(int card, uint64_t ns);
uint64_t gate_deferred_ns(int card);

#endif
