#define _GNU_SOURCE
#include "cuda/gate_wait.h"

#include "attachment.h"
#include "cuda/gate.h"
#include "cuda/gate_view.h"
#include "cuda/held_idle.h"
#include "cuda/settle.h"
#include "fork.h"
#include "lock.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define IDLE_LEAST_NS 2000000u /* what lies between two looks at unfinished work is no pause */
#define DOZE_MOST_NS 5000000u  /* so that a change of limits is seen */

/* What this process knows of a card's gate. */
static struct card_gate {
    bool noting;
    bool stuck;         /* nothing in flight ends: whoever launched it may have to launch more first */
    uint64_t closed_at; /* when it was last seen closed */
    uint64_t idle_ns;   /* time in which the container wanted nothing */
    uint64_t wanted_at; /* when the process last wanted something */
    uint64_t stuck_ahead_ns;
    struct gate_floor floor;
} gates[VCUDA_MAX_CARDS];

struct gate_look {
    struct card_gate *here;
    const struct vcuda_card_limits *limits;
    struct vcuda_card_usage *usage;
    const struct vcuda_gate *gate;
    int card;
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

/* Is the container about to fall behind its own share? Whoever finds another thread at it leaves the answer to that. */
static bool owes(const struct gate_look *look) {
    if (!spin_try(&look->here->noting))
        return false;
    uint64_t window = look->limits->window_ns, had = had_ns(look);
    gate_floor_note(&look->here->floor, window, had, look->now);
    bool behind = gate_floor_owes(&look->here->floor, look->limits->core_limit_q8, window, had, look->now);
    spin_unlock(&look->here->noting);
    return behind;
}

static bool is_closed(const struct gate_look *look) {
    if (!look->gate || !gate_is_closed(__atomic_load_n(&look->gate->closed_until_ns, __ATOMIC_ACQUIRE), look->now))
        return false;
    __atomic_store_n(&look->here->closed_at, look->now, __ATOMIC_RELAXED);
    return true;
}

/* Asleep until the gate is opened, or its deadline is over. */
static void doze(const struct gate_look *look, uint64_t most_ns) {
    uint32_t openings = __atomic_load_n(&look->gate->openings, __ATOMIC_ACQUIRE);
    uint64_t until = __atomic_load_n(&look->gate->closed_until_ns, __ATOMIC_ACQUIRE);
    if (!gate_is_closed(until, look->now))
        return;
    uint64_t ns = until - look->now < most_ns ? until - look->now : most_ns;
    struct timespec time = {.tv_nsec = (long)(ns < DOZE_MOST_NS ? ns : DOZE_MOST_NS)};
    syscall(SYS_futex, &look->gate->openings, FUTEX_WAIT, openings, &time, NULL, 0);
}

/* How long to wait for what is in flight; 0: not at all. */
static uint64_t room_ns(const struct gate_look *look, uint64_t launch_ns) {
    uint64_t since = __atomic_load_n(&meter_head_since[look->card], __ATOMIC_RELAXED);
    uint64_t ahead = __atomic_load_n(&meter_ahead_ns[look->card], __ATOMIC_RELAXED);
    struct gate_flight flight = {.ahead_ns = ahead, .since = since, .head_ns = launch_ns};
    bool undisturbed = __atomic_load_n(&look->here->closed_at, __ATOMIC_RELAXED) < since;
    if (__atomic_load_n(&look->here->stuck, __ATOMIC_RELAXED)) {
        if (ahead >= __atomic_load_n(&look->here->stuck_ahead_ns, __ATOMIC_RELAXED))
            return 0;
        __atomic_store_n(&look->here->stuck, false, __ATOMIC_RELAXED);
    }
    return gate_room_wait_ns(&flight, undisturbed, look->now);
}

static void nap(uint64_t ns) {
    struct timespec time = {.tv_nsec = (long)ns};
    nanosleep(&time, NULL);
}

static void pass(struct stream_meter *meter, uint64_t launch_ns, struct gate_look *look) {
    uint64_t began = look->now, held = 0;
    uint64_t patience = GATE_HOLD_MOST_NS + __atomic_load_n(&meter_ahead_ns[look->card], __ATOMIC_RELAXED);
    for (bool first = true;; first = false) {
        const struct vcuda_limits_view *view = vcuda_limits();
        if (!view || (uint32_t)look->card >= view->card_count || !view->card[look->card].granted_q8 ||
            __atomic_load_n(&meter->context_meter->lost, __ATOMIC_RELAXED))
            break;
        look->limits = &view->card[look->card];
        bool closed = is_closed(look);
        uint64_t room = room_ns(look, launch_ns), before = look->now;
        if (room && look->now - began > patience + held) { /* it may wait for what this thread has yet to launch */
            __atomic_store_n(&look->here->stuck_ahead_ns, meter_ahead_ns[look->card], __ATOMIC_RELAXED);
            __atomic_store_n(&look->here->stuck, true, __ATOMIC_RELAXED);
            room = 0;
        }
        if (!room && (!closed || held >= GATE_HOLD_MOST_NS || owes(look)))
            break;
        if (first) /* what is open is to be seen to end */
            stream_meter_flush(meter->stream, false);
        settle_pass();
        if (room)
            nap(room);
        else
            doze(look, GATE_HOLD_MOST_NS - held);
        look->now = vcuda_now_ns();
        held += room ? 0 : look->now - before;
        if (!room)
            held_idle_waited(vcuda_usage(), look->card, began, look->now);
    }
    if (held)
        __atomic_fetch_add(&look->usage->throttle_ns, held, __ATOMIC_RELAXED);
}

/* What the parent of a fork was about is not its child's. */
static void forget_in_child(void) {
    for (int card = 0; card < VCUDA_MAX_CARDS; card++)
        gates[card] = (struct card_gate){0};
}

void gate_wait(struct stream_meter *meter, uint64_t launch_ns) {
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
                             .now = vcuda_now_ns()};
    look.gate = gate_view(card, look.limits->uuid);
    owes(&look); /* what it had is noted also while nothing is closed */
    pass(meter, launch_ns, &look);
    __atomic_store_n(&look.here->wanted_at, look.now, __ATOMIC_RELAXED);
    errno = saved;
}
