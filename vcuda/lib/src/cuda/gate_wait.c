#include "cuda/gate_wait.h"

#include "attachment.h"
#include "cuda/gate.h"
#include "cuda/gate_deferred.h"
#include "cuda/gate_passage.h"
#include "cuda/held_idle.h"
#include "cuda/settle.h"

#include <errno.h>

/* Until it goes ahead, or waits on from here by itself. */
static void hold(struct stream_meter *meter, struct gate_look *look) {
    uint64_t began = look->now, held = 0, waited = 0;
    uint64_t patience = GATE_HOLD_MOST_NS + __atomic_load_n(&meter_ahead_ns[look->card], __ATOMIC_RELAXED);
    for (bool first = true; gate_look_again(look, look->now); first = false) {
        uint64_t before = look->now;
        bool is_over = held >= GATE_HOLD_MOST_NS;
        if (__atomic_load_n(&meter->context_meter->lost, __ATOMIC_RELAXED) ||
            (is_over && look->may_defer && gate_defer(meter, look)))
            break;
        if (look->room_ns && !look->others_deferred && before - began > patience + waited)
            gate_look_is_stuck(look); /* it may wait for what this thread has yet to launch */
        enum gate_passage passage = gate_look_passage(look);
        bool is_let = passage == GATE_IS_CLOSED || (passage == GATE_WAITS_FOR_TURN && !look->may_defer);
        if (passage == GATE_PASSES || (is_over && is_let))
            break;
        if (first) /* what is open is to be seen to end */
            stream_meter_flush(meter->stream, false);
        settle_pass();
        gate_look_rest(look, passage, held < GATE_HOLD_MOST_NS ? GATE_HOLD_MOST_NS - held : GATE_HOLD_MOST_NS);
        look->now = vcuda_now_ns();
        if (look->is_closed)
            gate_turn_stood_still(look->card, before, look->now);
        if (look->is_closed || look->others_deferred || passage != GATE_WAITS_FOR_ROOM)
            held += look->now - before;
        if (passage == GATE_WAITS_FOR_ROOM)
            continue;
        waited += look->now - before;
        held_idle_waited(vcuda_usage(), look->card, began, look->now);
    }
    if (waited)
        __atomic_fetch_add(&look->usage->throttle_ns, waited, __ATOMIC_RELAXED);
}

bool gate_wait(struct stream_meter *meter, const struct gated_launch *launch) {
    const struct vcuda_limits_view *view = vcuda_limits();
    struct vcuda_usage *usage = vcuda_usage();
    int card = meter->card;
    if (!view || !usage || (uint32_t)card >= view->card_count)
        return false;
    int saved = errno;
    struct gate_look look = {.card = card,
                             .limits = &view->card[card],
                             .usage = &usage->card[card],
                             .launch_ns = launch->expected_ns,
                             .is_unknown = launch->is_unknown && meter->others_may_record,
                             .may_defer = launch->may_defer && gate_may_defer(meter),
                             .now = vcuda_now_ns()};
    gate_launch_comes(&look);
    hold(meter, &look);
    gate_launch_goes(&look);
    errno = saved;
    return look.has_turn;
}
