#define _GNU_SOURCE
#include "cuda/gate_wait.h"

#include "attachment.h"
#include "cuda/gate.h"
#include "cuda/gate_view.h"
#include "cuda/held_idle.h"
#include "cuda/settle.h"
#include "cuda/turn.h"
#include "fork.h"
#include "lock.h"
#include "paths.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define IDLE_LEAST_NS 2000000u /* what lies between two looks at unfinished work is no pause */
#define DOZE_MOST_NS 5000000u  /* so that a change of limits is seen */
#define TURN_DOZE_NS 2000000u  /* who gives the turn wakes those who wait; who dies with it does not */
#define TURN_IDLE_NS 200000u   /* nothing was launched for so long: the turn is given */
#define WHOLE_Q8 (100u * 256u)
#define CATCH_UP 2u /* with its turn it has more of the card than it is granted, and not all come to it at once */
#define ALL INT32_MAX

/* What this process knows of a card's gate. */
static struct card_gate {
    bool noting;
    bool stuck;         /* nothing in flight ends: whoever launched it may have to launch more first */
    uint64_t closed_at; /* when it was last seen closed */
    uint64_t idle_ns;   /* time in which the container wanted nothing */
    uint64_t wanted_at; /* when the process last wanted something */
    uint64_t stuck_ahead_ns;
    struct gate_floor floor;
    struct turn turn;
} gates[VCUDA_MAX_CARDS];

struct gate_look {
    struct card_gate *here;
    const struct vcuda_card_limits *limits;
    struct vcuda_card_usage *usage;
    const struct vcuda_gate *gate;
    int card;
    bool unknown; /* what is to be launched was never measured: it may be long, and goes alone */
    uint64_t now;
};

/* GPU time that the container had, ever, or is about to have, and time in which it wanted none. */
static uint64_t had_ns(const struct gate_look *look) {
    return __atomic_load_n(&look->usage->busy_ns, __ATOMIC_RELAXED) +
           __atomic_load_n(&meter_ahead_ns[look->card], __ATOMIC_RELAXED) +
           __atomic_load_n(&look->here->idle_ns, __ATOMIC_RELAXED);
}

/* What has gone by since anything of the container's was in flight, or waited to be, was a pause. */
void gate_wanted(const struct stream_meter *meter) {
    struct card_gate *here = &gates[meter->card];
    struct vcuda_usage *usage = vcuda_usage();
    uint64_t now = vcuda_now_ns(), wanted = __atomic_load_n(&here->wanted_at, __ATOMIC_RELAXED);
    uint64_t busy = usage ? __atomic_load_n(&usage->card[meter->card].last_busy_ns, __ATOMIC_RELAXED) : 0;
    if (busy > wanted && busy <= now)
        wanted = busy;
    if (wanted && now > wanted + IDLE_LEAST_NS)
        __atomic_fetch_add(&here->idle_ns, now - wanted, __ATOMIC_RELAXED);
    __atomic_store_n(&here->wanted_at, now, __ATOMIC_RELAXED);
}

/* Is the container about to fall behind `share_q8` of the card, if it had `rate_q8` of it from now on? Whoever finds
 * another thread at it leaves the answer to that. */
static bool owes(const struct gate_look *look, uint32_t share_q8, uint32_t rate_q8) {
    if (!spin_try(&look->here->noting))
        return false;
    uint64_t window = look->limits->window_ns, had = had_ns(look);
    gate_floor_note(&look->here->floor, window, had, look->now);
    bool behind = gate_floor_owes(&look->here->floor, share_q8, rate_q8, window, had, look->now);
    spin_unlock(&look->here->noting);
    return behind;
}

/* Is it time to pass the closed gate, with the turn? */
static bool must_pass_gate(const struct gate_look *look) {
    return owes(look, look->limits->core_limit_q8, CATCH_UP * look->limits->granted_q8);
}

/* Without the turn, which another one has: later yet, for each that does so adds to what a protected launch meets. */
static bool must_go_ahead(const struct gate_look *look) {
    return owes(look, look->limits->core_limit_q8 / 32 * 31, WHOLE_Q8);
}

static bool is_closed(const struct gate_look *look) {
    if (!look->gate || !gate_is_closed(__atomic_load_n(&look->gate->closed_until_ns, __ATOMIC_ACQUIRE), look->now))
        return false;
    __atomic_store_n(&look->here->closed_at, look->now, __ATOMIC_RELAXED);
    return true;
}

/* Asleep until the gate is opened, or a turn given. */
static void doze(const struct gate_look *look, uint64_t most_ns) {
    uint32_t openings = __atomic_load_n(&look->gate->openings, __ATOMIC_ACQUIRE);
    uint64_t until = __atomic_load_n(&look->gate->closed_until_ns, __ATOMIC_ACQUIRE);
    uint64_t ns = most_ns < DOZE_MOST_NS ? most_ns : DOZE_MOST_NS;
    if (gate_is_closed(until, look->now) && until - look->now < ns)
        ns = until - look->now;
    struct timespec time = {.tv_nsec = (long)ns};
    syscall(SYS_futex, &look->gate->openings, FUTEX_WAIT, openings, &time, NULL, 0);
}

/* ---- turns
 * ---------------------------------------------------------------------------------------
 */

static uint64_t ahead_of(int card) {
    return __atomic_load_n(&meter_ahead_ns[card], __ATOMIC_RELAXED);
}

/* Cards on which this process has asked for a turn, by bits. */
static uint32_t with_turns;

static void give_turn(int card, const struct vcuda_gate *gate) {
    if (turn_give(&gates[card].turn) && gate)
        syscall(SYS_futex, &gate->openings, FUTEX_WAKE, ALL, NULL, NULL, 0);
}

/* One that is over is given once little of what is in flight is left; then this process waits for its next. */
static bool has_turn(const struct gate_look *look) {
    struct turn *turn = &look->here->turn;
    char path[PATHS_MAX];
    if (turn_is_held(turn)) {
        if (!turn_is_over(turn, look->now))
            return true;
        if (ahead_of(look->card) > GATE_AHEAD_NS)
            return false;
        give_turn(look->card, look->gate);
    }
    if (!look->gate || !paths_gate(path, look->limits->uuid))
        return true;
    __atomic_fetch_or(&with_turns, UINT32_C(1) << look->card, __ATOMIC_RELAXED);
    return turn_take(turn, path, look->now);
}

void gate_tend(void) {
    uint32_t cards = __atomic_load_n(&with_turns, __ATOMIC_RELAXED);
    uint64_t now = cards ? vcuda_now_ns() : 0;
    struct vcuda_slot *slot = vcuda_slot();
    for (int card = 0; cards >> card; card++) {
        struct card_gate *here = &gates[card];
        if (!turn_is_held(&here->turn) || __atomic_load_n(&here->turn.asking, __ATOMIC_RELAXED))
            continue;
        bool idle = !(slot && __atomic_load_n(&slot->inflight[card], __ATOMIC_RELAXED)) &&
                    now > __atomic_load_n(&here->wanted_at, __ATOMIC_RELAXED) + TURN_IDLE_NS;
        if (idle || (ahead_of(card) <= GATE_AHEAD_NS && turn_is_over(&here->turn, now)))
            give_turn(card, gate_mapped(card));
    }
}

/* How long to wait for what is in flight; 0: not at all. */
static uint64_t room_ns(const struct gate_look *look, uint64_t launch_ns) {
    struct vcuda_slot *slot = vcuda_slot();
    uint64_t since = __atomic_load_n(&meter_head_since[look->card], __ATOMIC_RELAXED);
    uint64_t ahead = __atomic_load_n(&meter_ahead_ns[look->card], __ATOMIC_RELAXED);
    struct gate_flight flight = {.ahead_ns = ahead, .since = since, .head_ns = launch_ns};
    bool undisturbed = __atomic_load_n(&look->here->closed_at, __ATOMIC_RELAXED) < since;
    if (__atomic_load_n(&look->here->stuck, __ATOMIC_RELAXED)) {
        uint64_t then = __atomic_load_n(&look->here->stuck_ahead_ns, __ATOMIC_RELAXED);
        if (then && ahead >= then)
            return 0;
        __atomic_store_n(&look->here->stuck, false, __ATOMIC_RELAXED);
    }
    if (look->unknown && slot && __atomic_load_n(&slot->inflight[look->card], __ATOMIC_RELAXED))
        return GATE_NAP_LEAST_NS;
    return gate_room_wait_ns(&flight, undisturbed, look->now);
}

static void nap(uint64_t ns) {
    struct timespec time = {.tv_nsec = (long)ns};
    nanosleep(&time, NULL);
}

/* Why a launch may go ahead, or for what it waits. */
enum passage { PASSES, WAITS_FOR_ROOM, WAITS_FOR_TURN, WAITS_FOR_GATE };

static enum passage look_for_passage(const struct gate_look *look, uint64_t room, uint64_t held) {
    bool closed = is_closed(look);
    if (room)
        return WAITS_FOR_ROOM;
    if (!has_turn(look))
        return must_go_ahead(look) ? PASSES : WAITS_FOR_TURN;
    if (!closed || held >= GATE_HOLD_MOST_NS || must_pass_gate(look))
        return PASSES;
    return WAITS_FOR_GATE;
}

static void rest(const struct gate_look *look, enum passage passage, uint64_t room, uint64_t held) {
    settle_pass();
    if (passage == WAITS_FOR_ROOM)
        nap(room);
    else if (passage == WAITS_FOR_GATE)
        doze(look, GATE_HOLD_MOST_NS - held);
    else if (turn_is_held(&look->here->turn)) /* until what is in flight has ended */
        nap(GATE_NAP_LEAST_NS);
    else
        doze(look, TURN_DOZE_NS);
}

static void pass(struct stream_meter *meter, uint64_t launch_ns, struct gate_look *look) {
    uint64_t began = look->now, held = 0, waited = 0;
    uint64_t patience = GATE_HOLD_MOST_NS + ahead_of(look->card);
    for (bool first = true;; first = false) {
        const struct vcuda_limits_view *view = vcuda_limits();
        if (!view || (uint32_t)look->card >= view->card_count || !view->card[look->card].granted_q8 ||
            __atomic_load_n(&meter->context_meter->lost, __ATOMIC_RELAXED))
            break;
        look->limits = &view->card[look->card];
        uint64_t room = room_ns(look, launch_ns), before = look->now;
        if (room && look->now - began > patience + waited) { /* it may wait for what this thread has yet to launch */
            __atomic_store_n(&look->here->stuck_ahead_ns, meter_ahead_ns[look->card], __ATOMIC_RELAXED);
            __atomic_store_n(&look->here->stuck, true, __ATOMIC_RELAXED);
            room = 0;
        }
        enum passage passage = look_for_passage(look, room, held);
        if (passage == PASSES)
            break;
        if (first) /* what is open is to be seen to end */
            stream_meter_flush(meter->stream, false);
        rest(look, passage, room, held);
        look->now = vcuda_now_ns();
        held += passage == WAITS_FOR_GATE ? look->now - before : 0;
        waited += room ? 0 : look->now - before;
        if (!room)
            held_idle_waited(vcuda_usage(), look->card, began, look->now);
    }
    if (waited)
        __atomic_fetch_add(&look->usage->throttle_ns, waited, __ATOMIC_RELAXED);
}

/* What the parent of a fork was about is not its child's. */
static void forget_in_child(void) {
    for (int card = 0; card < VCUDA_MAX_CARDS; card++) {
        turn_forget(&gates[card].turn);
        gates[card] = (struct card_gate){0};
    }
}

void gate_wait(struct stream_meter *meter, uint64_t launch_ns, bool unknown) {
    const struct vcuda_limits_view *view = vcuda_limits();
    struct vcuda_usage *usage = vcuda_usage();
    int card = meter->card;
    if (!view || !usage || (uint32_t)card >= view->card_count)
        return;
    int saved = errno;
    fork_forgets(forget_in_child);
    struct gate_look look = {.here = &gates[card],
                             .limits = &view->card[card],
                             .usage = &usage->card[card],
                             .card = card,
                             .unknown = unknown && meter->others_may_record,
                             .now = vcuda_now_ns()};
    look.gate = gate_view(card, look.limits->uuid);
    must_go_ahead(&look); /* what it had is noted also while nothing is closed */
    __atomic_fetch_add(&look.here->turn.asking, 1, __ATOMIC_ACQ_REL);
    pass(meter, launch_ns, &look);
    turn_use(&look.here->turn, look.now);
    __atomic_store_n(&look.here->wanted_at, look.now, __ATOMIC_RELAXED);
    if (__atomic_fetch_sub(&look.here->turn.asking, 1, __ATOMIC_ACQ_REL) == 1 && !turn_is_held(&look.here->turn))
        turn_give(&look.here->turn); /* it went ahead without: it waits no more */
    errno = saved;
}
