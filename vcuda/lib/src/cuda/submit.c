#include "cuda/submit.h"

#include <errno.h>
#include <time.h>

#include "core.h"
#include "cuda/meter.h"
#include "cuda/place.h"
#include "cuda/recent.h"
#include "front.h"
#include "page.h"

#define MEASURE_FIRST 3        /* work of a kind is measured alone so often before it is trusted to the average, ... */
#define MEASURE_ONE_IN_MASK 31 /* ... and now and then from then on, so that nothing hides behind an old average */
#define UNKNOWN_MOST 8         /* pieces in flight on a stream while more work of unknown cost arrives */
#define ROOM_NAP_NS 250000u

__thread struct work_view work_view __attribute__((tls_model("initial-exec")));

/* What else a thread remembers. Small: it lies in the space that the loader keeps for libraries opened late. */
static __thread struct lane {
    uint32_t dice;
    CUstream stream; /* the last launch's stream, as it was named, ... */
    CUcontext context;
    struct meter *meter; /* ... is this */
    uint64_t epoch;
    int64_t allowance_ns;
    int8_t card; /* of the allowance, + 1 */
    bool per_thread;
} lane __attribute__((tls_model("initial-exec")));

/* ---- without a limit
 * ---------------------------------------------------------------------------------------------------- */

void work_count(void) {
    struct place place;
    struct vcuda_usage *usage = vcuda_usage();
    if (work_view.uncounted && usage && place_here(&place) && place.card >= 0)
        __atomic_fetch_add(&usage->card[place.card].launches, work_view.uncounted, __ATOMIC_RELAXED);
    work_view.uncounted = 0;
}

bool work_look(void) {
    const struct vcuda_limits_view *view = vcuda_limits();
    if (!view)
        return false;
    int saved = errno;
    if (work_view.uncounted)
        work_count();
    if (work_view.view != view || work_view.generation != view->generation) {
        work_view.limited = 0;
        for (uint32_t i = 0; i < view->card_count; i++)
            if (view->card[i].mode & VCUDA_MODE_CORES_LIMITED)
                work_view.limited |= 1u << i;
        work_view.view = view;
        work_view.generation = view->generation;
    }
    work_view.uncounted += !work_view.limited;
    errno = saved;
    return work_view.limited;
}

/* ---- which stream
 * --------------------------------------------------------------------------------------------------------- */

static struct meter *__attribute__((noinline)) find_slowly(CUstream stream, bool per_thread, CUcontext context) {
    int saved = errno;
    uint64_t epoch = __atomic_load_n(&meter_epoch, __ATOMIC_SEQ_CST);
    struct meter *meter = meter_of(stream, per_thread);
    lane.stream = stream;
    lane.per_thread = per_thread;
    lane.context = context;
    lane.meter = meter;
    lane.epoch = epoch;
    errno = saved;
    return meter;
}

/* The null streams are the current context's; a handle says all by itself. */
static struct meter *find(CUstream stream, bool per_thread) {
    CUcontext context = NULL;
    if ((uintptr_t)stream <= 2 && real.cuCtxGetCurrent(&context) != CUDA_SUCCESS)
        return NULL;
    if (lane.stream == stream && lane.context == context && lane.per_thread == per_thread && lane.meter &&
        lane.epoch == __atomic_load_n(&meter_epoch, __ATOMIC_RELAXED))
        return lane.meter;
    return find_slowly(stream, per_thread, context);
}

/* ---- waiting for credit
 * ----------------------------------------------------------------------------------------------------- */

struct wait {
    uint64_t since, now;
    uint64_t throttled_ns; /* of it, for want of credit */
};

static bool is_limited(const struct vcuda_limits_view *view, int card) {
    return view && (uint32_t)card < view->card_count && view->card[card].mode & VCUDA_MODE_CORES_LIMITED;
}

/* Sleep, but settle first: what is finished may have cost less than it paid. */
static void rest(struct wait *wait, uint64_t left_ns) {
    settle_pass();
    struct timespec time = {.tv_nsec = (long)core_nap(left_ns)};
    nanosleep(&time, NULL);
    wait->now = vcuda_now_ns();
}

/* How long until there may be room in the queue ahead of the card; 0: now. The card is busy meanwhile. */
static uint64_t try_room(const struct vcuda_card_usage *usage, const struct meter *meter, bool unknown) {
    uint64_t ahead = __atomic_load_n(&meter_ahead_ns[meter->card], __ATOMIC_RELAXED);
    uint64_t most = core_ahead(__atomic_load_n(&usage->longest_ns, __ATOMIC_RELAXED));
    if (ahead > most)
        return ahead - most > ROOM_NAP_NS ? ahead - most : ROOM_NAP_NS;
    return unknown && __atomic_load_n(&meter->unsettled, __ATOMIC_RELAXED) > UNKNOWN_MOST ? ROOM_NAP_NS : 0;
}

/* How long until the last window has room for more; 0: now. Work of other processes that is not measured yet is not
 * seen: it is some milliseconds. Where others are at work on the card, what credit there is may be what they kept this
 * container from having, and is no pause's. */
static uint64_t try_window(const struct vcuda_card_usage *usage, const struct vcuda_limits_view *view, int card,
                           uint32_t share, uint64_t now) {
    static struct recent recent[VCUDA_MAX_CARDS];
    uint64_t ahead = __atomic_load_n(&meter_ahead_ns[card], __ATOMIC_RELAXED);
    uint64_t used = __atomic_load_n(&usage->busy_ns, __ATOMIC_RELAXED) + ahead;
    uint64_t full = recent_full_ns(&recent[card], view->card[card].window_ns, share, used, now);
    return core_sharers(view, card, now) > 256 ? 0 : full;
}

/* How long until work that costs `ns` may start; 0: now, and a slice is paid for. */
static uint64_t try_credit(struct vcuda_card_usage *usage, const struct vcuda_limits_view *view,
                           const struct meter *meter, const struct wait *wait, uint64_t ns) {
    const struct vcuda_card_limits *limits = &view->card[meter->card];
    uint32_t share = core_share(view, meter->card, wait->now);
    int64_t credit = core_refill(usage, limits, share, wait->now);
    uint64_t slice = core_slice(share);
    if (slice < ns)
        slice = ns;
    uint64_t debt = core_debt(limits->debt_ns, __atomic_load_n(&usage->longest_ns, __ATOMIC_RELAXED));
    int64_t floor = -(int64_t)core_seniority(wait->now - wait->since, share, debt);
    uint64_t full = try_window(usage, view, meter->card, share, wait->now);
    if (share >= CORE_WHOLE_Q8) /* the card itself is the limit */
        floor = INT64_MIN;
    else if (full)
        return full;
    if (core_take(usage, slice, floor)) {
        lane.allowance_ns += (int64_t)(slice - ns);
        return 0;
    }
    return core_wall((uint64_t)(credit < floor ? floor - credit : 0) + 1, share);
}

/* Give back what is left for another card. */
static void change_card(struct vcuda_usage *usage, int card) {
    if (lane.card && lane.allowance_ns > 0 && usage)
        __atomic_fetch_add(&usage->card[lane.card - 1].credit_ns, lane.allowance_ns, __ATOMIC_RELAXED);
    lane.allowance_ns = 0;
    lane.card = (int8_t)(card + 1);
}

/* So long that work of other processes or cards may be waiting for this. */
static bool is_too_long(const struct vcuda_card_usage *usage, const struct vcuda_limits_view *view, int card,
                        const struct wait *wait) {
    uint64_t debt = core_debt(view->card[card].debt_ns, __atomic_load_n(&usage->longest_ns, __ATOMIC_RELAXED));
    return wait->now - wait->since > core_guard(debt, core_share(view, card, wait->now));
}

/* May the work go ahead? If not, this has slept for a while. */
static bool proceed(struct vcuda_card_usage *usage, struct meter *meter, struct wait *wait, uint64_t ns, bool unknown) {
    const struct vcuda_limits_view *view = vcuda_limits();
    if (!is_limited(view, meter->card)) {
        core_force(usage, ns);
        return true;
    }
    uint64_t room = try_room(usage, meter, unknown), left = room;
    if (!room && lane.allowance_ns >= (int64_t)ns)
        lane.allowance_ns -= (int64_t)ns;
    else if (!room)
        left = try_credit(usage, view, meter, wait, ns);
    if (!left)
        return true;
    if (is_too_long(usage, view, meter->card, wait)) {
        __atomic_fetch_add(&usage->starved, 1, __ATOMIC_RELAXED);
        core_force(usage, ns);
        return true;
    }
    if (wait->now == wait->since)
        meter_flush(lane.stream, lane.per_thread); /* the card may be idle from here on: that is no work */
    uint64_t before = wait->now;
    rest(wait, left);
    wait->throttled_ns += room ? 0 : wait->now - before;
    return false;
}

static void __attribute__((noinline)) pay_slowly(struct meter *meter, uint64_t ns, bool unknown) {
    struct vcuda_usage *usage = vcuda_usage();
    int saved = errno;
    if (lane.card != meter->card + 1)
        change_card(usage, meter->card);
    struct wait wait = {.since = vcuda_now_ns()};
    wait.now = wait.since;
    while (usage && !__atomic_load_n(&meter->venue->lost, __ATOMIC_RELAXED) &&
           !proceed(&usage->card[meter->card], meter, &wait, ns, unknown))
        ;
    if (wait.throttled_ns)
        __atomic_fetch_add(&usage->card[meter->card].throttle_ns, wait.throttled_ns, __ATOMIC_RELAXED);
    errno = saved;
}

static void pay(struct meter *meter, struct cost *cost, uint64_t ns) {
    bool unknown = !cost_seen(cost);
    if (lane.card == meter->card + 1 && lane.allowance_ns >= (int64_t)ns && !unknown)
        lane.allowance_ns -= (int64_t)ns;
    else
        pay_slowly(meter, ns, unknown);
}

/* ---- the two ends of a call
 * ---------------------------------------------------------------------------------------------------- */

bool work_begin(struct work *work, CUstream stream, bool per_thread, const void *what, uint64_t size) {
    if (__builtin_expect(__atomic_load_n(&meter_captures, __ATOMIC_ACQUIRE) != 0, 0) &&
        meter_is_capturing(stream, per_thread))
        return false;
    struct meter *meter = find(stream, per_thread);
    if (!meter || !(work_view.limited >> meter->card & 1))
        return false;
    struct cost *cost = cost_find(cost_key(what, size));
    work->meter = meter;
    work->cost = cost;
    work->paid_ns = cost_ns(cost);
    pay(meter, cost, work->paid_ns);
    work->piece = meter_take(meter);
    if (work->piece)
        piece_add(work->piece, cost, work->paid_ns);
    return true;
}

/* xorshift: which launches are measured alone, programs cannot foretell. */
static bool is_sampled(void) {
    if (!lane.dice)
        lane.dice = (uint32_t)vcuda_now_ns() | 1;
    lane.dice ^= lane.dice << 13;
    lane.dice ^= lane.dice >> 17;
    lane.dice ^= lane.dice << 5;
    return !(lane.dice & MEASURE_ONE_IN_MASK);
}

static void __attribute__((noinline)) close_slowly(struct piece *piece) {
    int saved = errno;
    meter_close(piece, vcuda_now_ns());
    errno = saved;
}

/* No piece was to be had: what is expected is what it cost. */
static void __attribute__((noinline)) count_unmeasured(const struct work *work, CUresult result) {
    struct vcuda_usage *usage = vcuda_usage();
    if (!usage || result != CUDA_SUCCESS)
        return;
    __atomic_fetch_add(&usage->card[work->meter->card].busy_ns, work->paid_ns, __ATOMIC_RELAXED);
    __atomic_fetch_add(&usage->card[work->meter->card].launches, 1, __ATOMIC_RELAXED);
}

void work_end(struct work *work, CUresult result) {
    struct piece *piece = work->piece;
    if (result != CUDA_SUCCESS)
        lane.allowance_ns += (int64_t)work->paid_ns;
    if (!piece) {
        count_unmeasured(work, result);
        return;
    }
    if (result != CUDA_SUCCESS)
        piece_remove(piece, work->cost, work->paid_ns);
    if (piece->expected_ns >= METER_PIECE_NS || piece->launches >= METER_LAUNCHES ||
        cost_seen(work->cost) < MEASURE_FIRST || is_sampled())
        close_slowly(piece);
    else
        meter_put(work->meter, piece);
}
