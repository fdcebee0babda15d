/* Whether a launch of a best-effort container may go ahead, or what it waits for: one check of the card's gate, of the
 * turns and of the work in flight. gate.h has the arithmetic; gate_wait.h and gate_deferred.h check again. */
#ifndef VCUDA_GATE_PASSAGE_H
#define VCUDA_GATE_PASSAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda/stream_meter.h"
#include "cuda/turn.h"
#include "page.h"

enum gate_passage { GATE_PASSES, GATE_WAITS_FOR_ROOM, GATE_WAITS_FOR_TURN, GATE_IS_CLOSED };

/* A launch that is checked, and the result. Times in ns. Launches that wait on their streams go before those that may
 * come to do so; a launch that may not waits for the work in flight alone. */
struct gate_look {
    int card;
    const struct vcuda_card_limits *limits;
    struct vcuda_card_usage *usage;
    const struct vcuda_gate *gate; /* NULL: the container has none, or none yet */
    uint64_t launch_ns;            /* what it is expected to take */
    bool is_deferred;              /* it waits on its stream, the call has returned */
    bool may_defer;                /* it may come to do so */
    bool is_unknown;               /* it was never measured: it may be long, and goes alone */
    uint64_t now;
    bool is_closed;       /* the gate is */
    bool others_deferred; /* launches of this process wait by themselves */
    bool has_turn;        /* it passes in its process's turn, which stays that until gate_launched() */
    uint64_t room_ns;     /* how long to wait for what is in flight; 0: not at all */
};

/* Check again, now. False: there is nothing to wait for any more, the card has not both classes. */
bool gate_look_again(struct gate_look *look, uint64_t now);

/* After it. */
enum gate_passage gate_look_passage(struct gate_look *look);

/* Sleep until something may have changed; for `most_ns` at most where the wait is for other containers. */
void gate_look_rest(const struct gate_look *look, enum gate_passage passage, uint64_t most_ns);

/* Nothing in flight ends: its program may have to launch more first. From here on there is room. */
void gate_look_is_stuck(struct gate_look *look);

/* A launch begins to wait, in its call or on its stream, and stops. While any waits, the process keeps its turn, or its
 * place among the processes that wait for one. */
void gate_launch_comes(struct gate_look *look);
void gate_launch_goes(struct gate_look *look);

/* A launch made in its process's turn is in flight. */
void gate_launched(int card);

/* A thread is about to launch: from here on the container has work, and time that passes is no pause of it. */
void gate_wanted(const struct stream_meter *meter);

/* Release turns that the process does not use any more or that are over. The helper thread calls this between two
 * passes. True: it must call again soon. */
bool gate_tend(void);

/* The gate was closed in between, which is no time of this process's turn. */
void gate_turn_stood_still(int card, uint64_t since, uint64_t until);

/* True if a launch made at `since` may have waited for another best-effort container's work. */
bool gate_others_ran(int card, uint64_t since);

/* So much launched work waits at the gate on its streams (gate_deferred.h): it is not in flight. */
void gate_defers(int card, uint64_t ns);
void gate_defers_no_more(int card, uint64_t ns);
uint64_t gate_deferred_ns(int card);

#endif
