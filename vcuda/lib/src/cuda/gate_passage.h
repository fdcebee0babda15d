/* May a launch of a best-effort container go ahead, or for what does it wait? One look at a card's gate, at the turns
 * of its kind and at what is in flight. gate.h has the arithmetic; who looks again, and where, is gate_wait.h's and
 * gate_deferred.h's. */
#ifndef VCUDA_GATE_PASSAGE_H
#define VCUDA_GATE_PASSAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda/stream_meter.h"
#include "cuda/turn.h"
#include "page.h"

enum gate_passage { GATE_PASSES, GATE_WAITS_FOR_ROOM, GATE_WAITS_FOR_TURN, GATE_IS_CLOSED };

/* A launch that looks, and what it finds. Times in ns. What waits by itself is before those who may do so too; who may
 * not waits for what is in flight alone. */
struct gate_look {
    int card;
    const struct vcuda_card_limits *limits;
    struct vcuda_card_usage *usage;
    const struct vcuda_gate *gate; /* NULL: the container has none, or none yet */
    uint64_t launch_ns;            /* what it is expected to take */
    bool is_deferred;              /* it waits by itself */
    bool may_defer;                /* it may */
    bool is_unknown;               /* it was never measured: it may be long, and goes alone */
    uint64_t now;
    bool is_closed;       /* the gate is */
    bool others_deferred; /* launches of this process wait by themselves */
    bool has_turn;        /* it passes in its process's turn, which stays that until gate_launched() */
    uint64_t room_ns;     /* how long to wait for what is in flight; 0: not at all */
};

/* Look again, now. False: nothing is to be waited for any more, the card is none with both classes. */
bool gate_look_again(struct gate_look *look, uint64_t now);

/* After it. */
enum gate_passage gate_look_passage(struct gate_look *look);

/* Asleep for a while, until there may be something new; at most for so long where the wait is for others. */
void gate_look_rest(const struct gate_look *look, enum gate_passage passage, uint64_t most_ns);

/* Nothing in flight ends: whoever launched it may have to launch more first. From here on there is room. */
void gate_look_is_stuck(struct gate_look *look);

/* A launch comes to wait, here or by itself, and goes: ahead, or because it is to wait by itself. While any waits, the
 * process keeps its turn, or its place among those who wait for one. */
void gate_launch_comes(struct gate_look *look);
void gate_launch_goes(struct gate_look *look);

/* What went in its process's turn is in flight. */
void gate_launched(int card);

/* A thread has come to launch: what it waits for from here on, its own limit included, is no pause of the container's.
 */
void gate_wanted(const struct stream_meter *meter);

/* Give turns back that the process does not use any more, or has had. The helper thread calls this between two looks.
 * True: it has to again, soon. */
bool gate_tend(void);

/* The gate was closed then: it was no time of this process's turn. */
void gate_turn_stood_still(int card, uint64_t since, uint64_t until);

/* May what this process launched at `since` have waited for another best-effort container's work? */
bool gate_others_ran(int card, uint64_t since);

/* So much of what was launched waits at the gate by itself (gate_deferred.h): it is not in flight. */
void gate_defers(int card, uint64_t ns);
void gate_defers_no_more(int card, uint64_t ns);
uint64_t gate_deferred_ns(int card);

#endif
