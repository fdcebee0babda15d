#include "cuda/payment.h"
#include "attachment.h"
#include "cuda/credit.h"
#include "cuda/gate_passage.h"
#include "cuda/held_idle.h"
#include "cuda/settle.h"
#include "fork.h"
#include "nap.h"
#include "token_bucket.h"

#include <errno.h>

#define UNKNOWN_MOST 8 /* spans in flight on a stream while more work of unknown cost arrives */
#define ROOM_NAP_NS 250000u
#define PAUSE_NS 15000000u /* of a protected container that waits for credit: best-effort work runs meanwhile */

struct pocket pockets[VCUDA_MAX_CARDS];

/* Work ahead of a card that stood still for so long that launches went on: of it what is ahead yet, and the most ever.
 */
static struct stuck {
    uint64_t now_ns, most_ns;
} stuck[VCUDA_MAX_CARDS];

/* In the child of a fork: what its parent has paid for is not its own. */
static void forget_in_child(void) {
    for (int card = 0; card < VCUDA_MAX_CARDS; card++)
        pockets[card].ns = 0;
}

struct wait {
    uint64_t since, now;
    uint64_t resumes;      /* a pause that others are to use lasts until then */
    uint64_t throttled_ns; /* of it, for want of credit */
};

static bool is_limited(const struct vcuda_limits_view *view, int card) {
    return view && (uint32_t)card < view->card_count && view->card[card].mode & VCUDA_MODE_CORES_LIMITED;
}

/* Sleep, but settle first: what is finished may have cost less than it paid. */
static void rest(struct wait *wait, uint64_t left_ns) {
    settle_pass();
    nap(bucket_nap(left_ns));
    wait->now = vcuda_now_ns();
}

/* How long until there is credit for the work; 0: it is paid. A protected container that has to wait does so for a
 * while at once: best-effort work can use a pause of that length, and none of those between kernels. */
static uint64_t credit_left_ns(struct wait *wait, const struct credit *credit, uint64_t ns) {
    uint64_t left, taken = 0;
    if (wait->resumes > wait->now)
        return wait->resumes - wait->now;
    if (pocket_take(credit->card, ns))
        return 0;
    if ((left = credit_take_ns(credit, ns, &taken)) == 0) {
        pocket_put(credit->card, taken - ns);
        return 0;
    }
    if (__atomic_load_n(&meter_tells, __ATOMIC_RELAXED) >> credit->card & 1)
        wait->resumes = wait->now + PAUSE_NS;
    return left;
}

/* The part of what is ahead that stands still, or may again: on a stream that waits as one did before. */
static uint64_t stuck_ns(const struct stream_meter *meter, uint64_t ahead_ns) {
    struct stuck *known = &stuck[meter->card];
    uint64_t ns = __atomic_load_n(&known->now_ns, __ATOMIC_RELAXED);
    if (ns > ahead_ns)
        __atomic_store_n(&known->now_ns, ns = ahead_ns, __ATOMIC_RELAXED);
    return __atomic_load_n(&meter->clock.waits, __ATOMIC_RELAXED) ? __atomic_load_n(&known->most_ns, __ATOMIC_RELAXED)
                                                                  : ns;
}

/* How long until there is room ahead of the card; 0: now. What stands still is not waited for: the thread that launches
 * may be the one that lets it go on. */
static uint64_t room_ns(const struct credit *credit, const struct stream_meter *meter, bool unknown) {
    uint64_t room = credit_room_ns(credit);
    unknown = unknown && !credit->stuck_ns;
    if (!room && unknown && __atomic_load_n(&meter->unsettled, __ATOMIC_RELAXED) > UNKNOWN_MOST)
        room = ROOM_NAP_NS;
    if (!room || !credit_ahead_is_stuck(credit))
        return room;
    struct stuck *known = &stuck[credit->card];
    __atomic_store_n(&known->now_ns, credit->ahead_ns, __ATOMIC_RELAXED);
    if (credit->ahead_ns > __atomic_load_n(&known->most_ns, __ATOMIC_RELAXED))
        __atomic_store_n(&known->most_ns, credit->ahead_ns, __ATOMIC_RELAXED);
    return 0;
}

/* May the work go ahead? If not, this has slept for a while. */
static bool proceed(struct vcuda_card_usage *usage, struct stream_meter *meter, struct wait *wait, uint64_t ns,
                    bool unknown) {
    static struct window_cap caps[VCUDA_MAX_CARDS];
    const struct vcuda_limits_view *view = vcuda_limits();
    if (!is_limited(view, meter->card)) {
        bucket_force(usage, ns);
        return true;
    }
    uint64_t ahead = __atomic_load_n(&meter_ahead_ns[meter->card], __ATOMIC_RELAXED);
    struct credit credit = {.usage = usage,
                            .view = view,
                            .cap = &caps[meter->card],
                            .card = meter->card,
                            .ahead_ns = ahead,
                            .gated_ns = gate_deferred_ns(meter->card),
                            .stuck_ns = stuck_ns(meter, ahead),
                            .moved_at = __atomic_load_n(&meter_head_since[meter->card], __ATOMIC_RELAXED),
                            .now = wait->now,
                            .waited_ns = wait->now - wait->since};
    uint64_t room = room_ns(&credit, meter, unknown);
    uint64_t left = room ? room : credit_left_ns(wait, &credit, ns);
    if (!left)
        return true;
    if (credit_is_overdue(&credit)) {
        __atomic_fetch_add(&usage->starved, 1, __ATOMIC_RELAXED);
        bucket_force(usage, ns);
        return true;
    }
    if (wait->now == wait->since)
        stream_meter_flush(meter->stream, false); /* the card may be idle from here on: that is no work */
    uint64_t before = wait->now;
    rest(wait, left);
    wait->throttled_ns += room ? 0 : wait->now - before;
    if (!room)
        held_idle_waited(vcuda_usage(), meter->card, wait->since, wait->now);
    return false;
}

void payment_wait(struct stream_meter *meter, uint64_t ns, bool unknown) {
    struct vcuda_usage *usage = vcuda_usage();
    int saved = errno;
    fork_forgets(forget_in_child);
    struct wait wait = {.since = vcuda_now_ns()};
    wait.now = wait.since;
    while (usage && !__atomic_load_n(&meter->context_meter->lost, __ATOMIC_RELAXED) &&
           !proceed(&usage->card[meter->card], meter, &wait, ns, unknown))
        ;
    if (wait.throttled_ns)
        __atomic_fetch_add(&usage->card[meter->card].throttle_ns, wait.throttled_ns, __ATOMIC_RELAXED);
    errno = saved;
}
