#include "cuda/gate_deferred.h"

#include "attachment.h"
#include "interposer.h"

static struct gate_tickets tickets;
static struct deferred_launch {
    int card;
    uint64_t launch_ns, since;
    bool is_unknown;
    const struct context_meter *context_meter;
    uint64_t owner; /* the context: its meter may become another's */
} deferred[GATE_TICKETS];
static uint32_t waiting;

/* It has waited for long: is it the one of this second that goes ahead for that? */
static bool is_let(uint64_t since, uint64_t now) {
    static uint64_t last;
    uint64_t before = __atomic_load_n(&last, __ATOMIC_RELAXED);
    return now - since >= GATE_DEFERRED_MOST_NS && now - before >= GATE_DEFERRED_MOST_NS &&
           __atomic_compare_exchange_n(&last, &before, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

/* Until it passes, or is not to be held any longer. */
static void wait(struct gate_look *look, uint64_t since) {
    uint64_t began = look->now, roomless = 0;
    while (gate_look_again(look, look->now)) {
        uint64_t before = look->now, room = roomless < GATE_DEFERRED_ROOM_NS ? look->room_ns : 0;
        look->room_ns = room;
        enum gate_passage passage = gate_look_passage(look);
        if (passage == GATE_PASSES || is_let(since, before))
            break;
        gate_look_rest(look, passage, GATE_DEFERRED_MOST_NS);
        look->now = vcuda_now_ns();
        roomless += room ? look->now - before : 0;
        if (look->is_closed)
            gate_turn_stood_still(look->card, before, look->now);
    }
    __atomic_fetch_add(&look->usage->throttle_ns, look->now - began, __ATOMIC_RELAXED);
}

/* Whoever serves the ticket: it waits no more. */
static void end(uint64_t ticket) {
    const struct deferred_launch *launch = &deferred[gate_ticket_place(ticket)];
    gate_defers_no_more(launch->card, launch->launch_ns);
    gate_ticket_give_back(&tickets, ticket);
    __atomic_fetch_sub(&waiting, 1, __ATOMIC_RELAXED);
}

/* In a thread of the driver's. */
static void wait_on_stream(void *data) {
    uint64_t ticket = (uintptr_t)data;
    const struct vcuda_limits_view *view = vcuda_limits();
    struct vcuda_usage *usage = vcuda_usage();
    if (!gate_ticket_serve(&tickets, ticket))
        return;
    const struct deferred_launch *launch = &deferred[gate_ticket_place(ticket)];
    struct gate_look look = {.card = launch->card,
                             .launch_ns = launch->launch_ns,
                             .is_deferred = true,
                             .is_unknown = launch->is_unknown,
                             .now = vcuda_now_ns()};
    if (view && usage && (uint32_t)look.card < view->card_count) {
        look.limits = &view->card[look.card];
        look.usage = &usage->card[look.card];
        gate_launch_comes(&look);
        wait(&look, launch->since);
        gate_launch_goes(&look);
    }
    end(ticket);
    if (look.has_turn)
        gate_launched(look.card);
}

/* On one of the null streams a host function would end another stream's capture; in a capture it would become a node.
 */
bool gate_may_defer(const struct stream_meter *meter) {
    bool is_null = (uintptr_t)meter->stream <= 2, capturing = __atomic_load_n(&meter_captures, __ATOMIC_SEQ_CST) != 0;
    return !capturing || (!is_null && !stream_is_capturing(meter->stream, false));
}

bool gate_defer(struct stream_meter *meter, const struct gate_look *look) {
    uint64_t ticket;
    if (!gate_may_defer(meter) || !gate_ticket_take(&tickets, &ticket))
        return false;
    struct deferred_launch *launch = &deferred[gate_ticket_place(ticket)];
    launch->card = look->card;
    launch->launch_ns = look->launch_ns;
    launch->is_unknown = look->is_unknown;
    launch->since = look->now;
    __atomic_store_n(&launch->owner, __atomic_load_n(&meter->context_meter->owner, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
    __atomic_store_n(&launch->context_meter, meter->context_meter, __ATOMIC_RELAXED);
    __atomic_fetch_add(&waiting, 1, __ATOMIC_RELAXED);
    gate_defers(look->card, look->launch_ns);
    gate_ticket_waits(&tickets, ticket);
    stream_meter_waits(meter->stream, false, false);
    if (real.cuLaunchHostFunc(meter->stream, (void *)wait_on_stream, (void *)(uintptr_t)ticket) == CUDA_SUCCESS)
        return true;
    if (gate_ticket_serve(&tickets, ticket))
        end(ticket);
    return false;
}

static bool is_over(const struct deferred_launch *launch) {
    const struct context_meter *meter = __atomic_load_n(&launch->context_meter, __ATOMIC_RELAXED);
    return __atomic_load_n(&meter->lost, __ATOMIC_RELAXED) ||
           __atomic_load_n(&meter->owner, __ATOMIC_RELAXED) != __atomic_load_n(&launch->owner, __ATOMIC_RELAXED);
}

void gate_deferred_tend(void) {
    uint64_t ticket;
    if (!__atomic_load_n(&waiting, __ATOMIC_RELAXED))
        return;
    for (unsigned place = 0; place < GATE_TICKETS; place++)
        if (gate_ticket_waits_at(&tickets, place, &ticket) && is_over(&deferred[place]) &&
            gate_ticket_serve(&tickets, ticket))
            end(ticket);
}
