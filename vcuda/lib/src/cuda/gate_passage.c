#define _GNU_SOURCE
#include "cuda/gate_passage.h"

#include "attachment.h"
#include "cuda/gate.h"
#include "cuda/gate_view.h"
#include "fork.h"
#include "lock.h"
#include "nap.h"
#include "paths.h"

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
    bool stuck;
    uint64_t closed_at; /* when it was last seen closed */
    uint64_t idle_ns;   /* time in which the container wanted nothing */
    uint64_t wanted_at; /* when the process last wanted something */
    uint64_t stuck_ahead_ns;
    uint64_t deferred_ns;
    struct gate_floor floor;
    struct turn turn;
} gates[VCUDA_MAX_CARDS];

uint64_t gate_deferred_ns(int card) {
    return __atomic_load_n(&gates[card].deferred_ns, __ATOMIC_RELAXED);
}

static uint64_t launched_ns(int card) {
    return __atomic_load_n(&meter_ahead_ns[card], __ATOMIC_RELAXED);
}

/* Of it, what is in flight on the card, or may be at any moment. */
static uint64_t ahead_of(int card) {
    uint64_t ahead = launched_ns(card);
    uint64_t deferred = gate_deferred_ns(card);
    return ahead > deferred ? ahead - deferred : 0;
}

/* GPU time that the container had, ever, or is about to have, and time in which it wanted none. */
static uint64_t had_ns(const struct gate_look *look) {
    return __atomic_load_n(&look->usage->busy_ns, __ATOMIC_RELAXED) + ahead_of(look->card) +
           __atomic_load_n(&gates[look->card].idle_ns, __ATOMIC_RELAXED);
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
    struct card_gate *here = &gates[look->card];
    if (!spin_try(&here->noting))
        return false;
    uint64_t window = look->limits->window_ns, had = had_ns(look);
    gate_floor_note(&here->floor, window, had, look->now);
    bool behind = gate_floor_owes(&here->floor, share_q8, rate_q8, window, had, look->now);
    spin_unlock(&here->noting);
    return behind;
}

/* Is it time to pass the closed gate, with the turn? On a card that is booked to the last core a second lacks a
 * kernel's part as a rule, and what passes for that meets the protected container's work. */
static bool must_pass_gate(const struct gate_look *look) {
    return owes(look, look->limits->core_limit_q8 / 40 * 39, CATCH_UP * look->limits->granted_q8);
}

/* Without the turn, which another one has: later yet, for each that does so adds to what a protected launch meets. And
 * not before it has waited for longer than turns take while the gate was open: several at once get less of the card
 * than one by one (two thirds, on an H100), so that who goes ahead because he is behind makes all fall further behind.
 */
static bool must_go_ahead(const struct gate_look *look) {
    bool owed = owes(look, look->limits->core_limit_q8 / 32 * 31, WHOLE_Q8);
    return owed && (look->is_closed || turn_waits_in_vain(&gates[look->card].turn, look->now));
}

static bool is_closed(const struct gate_look *look) {
    if (!look->gate || !gate_is_closed(__atomic_load_n(&look->gate->closed_until_ns, __ATOMIC_ACQUIRE), look->now))
        return false;
    __atomic_store_n(&gates[look->card].closed_at, look->now, __ATOMIC_RELAXED);
    return true;
}

/* Asleep until the gate is opened or a turn given. */
static void doze(const struct gate_look *look, uint64_t most_ns) {
    struct timespec time = {.tv_nsec = (long)(most_ns < DOZE_MOST_NS ? most_ns : DOZE_MOST_NS)};
    if (!look->gate) {
        nap((uint64_t)time.tv_nsec);
        return;
    }
    uint32_t openings = __atomic_load_n(&look->gate->openings, __ATOMIC_ACQUIRE);
    uint64_t until = __atomic_load_n(&look->gate->closed_until_ns, __ATOMIC_ACQUIRE);
    if (gate_is_closed(until, look->now) && until - look->now < (uint64_t)time.tv_nsec)
        time.tv_nsec = (long)(until - look->now);
    syscall(SYS_futex, &look->gate->openings, FUTEX_WAIT, openings, &time, NULL, 0);
}

void gate_look_rest(const struct gate_look *look, enum gate_passage passage, uint64_t most_ns) {
    if (passage == GATE_WAITS_FOR_ROOM) /* by itself, it is called when what was before it has ended */
        nap(look->is_deferred && look->room_ns > GATE_NAP_LATE_NS ? GATE_NAP_LATE_NS : look->room_ns);
    else if (passage == GATE_IS_CLOSED)
        doze(look, most_ns);
    else if (turn_is_held(&gates[look->card].turn)) /* until what is in flight has ended */
        nap(GATE_NAP_LEAST_NS);
    else
        doze(look, most_ns < TURN_DOZE_NS ? most_ns : TURN_DOZE_NS);
}

/* ---- turns
 * ---------------------------------------------------------------------------------------
 */

/* Cards on which this process has asked for a turn, by bits. */
static uint32_t with_turns;

static bool give_turn(int card, uint64_t taken_at, const struct vcuda_gate *gate, uint64_t now) {
    bool gives = turn_give(&gates[card].turn, taken_at, now);
    if (gives && gate)
        syscall(SYS_futex, &gate->openings, FUTEX_WAKE, ALL, NULL, NULL, 0);
    return gives;
}

/* One that is over is given once little of what is in flight is left; then this process waits for its next. */
static bool has_turn(struct gate_look *look) {
    struct turn *turn = &gates[look->card].turn;
    char path[PATHS_MAX];
    if ((look->has_turn = turn_hold(turn))) {
        uint64_t taken_at = turn_taken_at(turn);
        if (!turn_is_over(turn, look->launch_ns, look->now))
            return true;
        turn_let_go(turn);
        look->has_turn = false;
        if (ahead_of(look->card) > GATE_AHEAD_NS || !give_turn(look->card, taken_at, look->gate, look->now))
            return false;
    }
    if (!look->gate || !paths_gate(path, look->limits->uuid))
        return true;
    __atomic_fetch_or(&with_turns, UINT32_C(1) << look->card, __ATOMIC_RELAXED);
    return look->has_turn = turn_take(turn, path, look->now);
}

void gate_launched(int card) {
    turn_let_go(&gates[card].turn);
}

bool gate_tend(void) {
    bool goes_on = false;
    uint32_t cards = __atomic_load_n(&with_turns, __ATOMIC_RELAXED);
    uint64_t now = cards ? vcuda_now_ns() : 0;
    struct vcuda_slot *slot = vcuda_slot();
    for (int card = 0; cards >> card; card++) {
        struct card_gate *here = &gates[card];
        goes_on |= turn_tend(&here->turn, now);
        if (!turn_is_held(&here->turn) || __atomic_load_n(&here->turn.asking, __ATOMIC_RELAXED))
            continue;
        bool idle = !(slot && __atomic_load_n(&slot->inflight[card], __ATOMIC_RELAXED)) &&
                    now > __atomic_load_n(&here->wanted_at, __ATOMIC_RELAXED) + TURN_IDLE_NS;
        uint64_t taken_at = turn_taken_at(&here->turn);
        if (idle || (ahead_of(card) <= GATE_AHEAD_NS && turn_is_over(&here->turn, 0, now)))
            give_turn(card, taken_at, gate_mapped(card), now);
    }
    return goes_on;
}

void gate_turn_stood_still(int card, uint64_t since, uint64_t until) {
    turn_extend(&gates[card].turn, since, until);
}

/* What the parent of a fork was about is not its child's. */
static void forget_in_child(void) {
    for (int card = 0; card < VCUDA_MAX_CARDS; card++) {
        turn_forget(&gates[card].turn);
        gates[card] = (struct card_gate){0};
    }
}

void gate_launch_comes(struct gate_look *look) {
    fork_forgets(forget_in_child);
    look->gate = gate_view(look->card, look->limits->uuid);
    must_go_ahead(look); /* what it had is noted also while nothing is closed */
    __atomic_fetch_add(&gates[look->card].turn.asking, 1, __ATOMIC_ACQ_REL);
}

/* One that was let through a closed gate has its turn, too. */
void gate_launch_goes(struct gate_look *look) {
    struct card_gate *here = &gates[look->card];
    if (!look->has_turn)
        look->has_turn = turn_hold(&here->turn);
    turn_use(&here->turn, look->now);
    __atomic_store_n(&here->wanted_at, look->now, __ATOMIC_RELAXED);
    bool waits_on = __atomic_fetch_sub(&here->turn.asking, 1, __ATOMIC_ACQ_REL) > 1;
    if (!look->has_turn)
        turn_went_ahead(&here->turn, waits_on, look->now);
}

bool gate_others_ran(int card, uint64_t since) {
    return turn_others_ran(&gates[card].turn, since);
}

/* ---- what is in flight
 * ---------------------------------------------------------------------------------------
 */

void gate_look_is_stuck(struct gate_look *look) {
    struct card_gate *here = &gates[look->card];
    __atomic_store_n(&here->stuck_ahead_ns, launched_ns(look->card), __ATOMIC_RELAXED);
    __atomic_store_n(&here->stuck, true, __ATOMIC_RELAXED);
    look->room_ns = 0;
}

void gate_defers(int card, uint64_t ns) {
    __atomic_fetch_add(&gates[card].deferred_ns, ns, __ATOMIC_RELAXED);
}

void gate_defers_no_more(int card, uint64_t ns) {
    __atomic_fetch_sub(&gates[card].deferred_ns, ns, __ATOMIC_RELAXED);
}

static uint64_t room_ns(const struct gate_look *look) {
    struct card_gate *here = &gates[look->card];
    struct vcuda_slot *slot = vcuda_slot();
    uint64_t since = __atomic_load_n(&meter_head_since[look->card], __ATOMIC_RELAXED);
    uint64_t ahead = look->may_defer ? launched_ns(look->card) : ahead_of(look->card);
    struct gate_flight flight = {.ahead_ns = ahead, .since = since, .head_ns = look->launch_ns};
    bool undisturbed = __atomic_load_n(&here->closed_at, __ATOMIC_RELAXED) < since && !look->others_deferred;
    if (__atomic_load_n(&here->stuck, __ATOMIC_RELAXED)) {
        uint64_t then = __atomic_load_n(&here->stuck_ahead_ns, __ATOMIC_RELAXED);
        if (then && ahead >= then)
            return 0;
        __atomic_store_n(&here->stuck, false, __ATOMIC_RELAXED);
    }
    bool alone = look->is_deferred ? !ahead : !slot || !__atomic_load_n(&slot->inflight[look->card], __ATOMIC_RELAXED);
    if (look->is_unknown && !alone)
        return GATE_NAP_LEAST_NS;
    return gate_room_wait_ns(&flight, undisturbed, look->now);
}

/* ---- a look
 * ---------------------------------------------------------------------------------------
 */

bool gate_look_again(struct gate_look *look, uint64_t now) {
    const struct vcuda_limits_view *view = vcuda_limits();
    look->now = now;
    if (!view || (uint32_t)look->card >= view->card_count || !view->card[look->card].granted_q8)
        return false;
    look->limits = &view->card[look->card];
    look->others_deferred = look->may_defer && gate_deferred_ns(look->card);
    look->room_ns = room_ns(look);
    look->is_closed = is_closed(look);
    return true;
}

enum gate_passage gate_look_passage(struct gate_look *look) {
    if (look->room_ns)
        return GATE_WAITS_FOR_ROOM;
    if (!has_turn(look))
        return must_go_ahead(look) ? GATE_PASSES : GATE_WAITS_FOR_TURN;
    if (!look->is_closed || must_pass_gate(look))
        return GATE_PASSES;
    if (look->has_turn)
        gate_launched(look->card);
    look->has_turn = false;
    return GATE_IS_CLOSED;
}
