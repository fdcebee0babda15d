#include "cuda/throttle.h"

#include <errno.h>
#include <time.h>

#include "attachment.h"
#include "cuda/context_registry.h"
#include "cuda/meter_thread.h"
#include "cuda/settle.h"
#include "cuda/stream_meter.h"
#include "cuda/window_cap.h"
#include "interposer.h"
#include "page.h"
#include "token_bucket.h"

#define MEASURE_FIRST 3        /* work of a kind is measured alone so often before it is trusted to the average, ... */
#define MEASURE_ONE_IN_MASK 31 /* ... and now and then from then on, so that nothing hides behind an old average */
#define UNKNOWN_MOST 8         /* spans in flight on a stream while more work of unknown cost arrives */
#define ROOM_NAP_NS 250000u

__thread struct throttle_view throttle_view __attribute__((tls_model("initial-exec")));

/* What else a thread remembers. Small: it lies in the space that the loader keeps for libraries opened late. */
static __thread struct thread_state {
    uint32_t dice;
    CUstream stream; /* the last launch's stream, as it was named, ... */
    CUcontext context;
    struct stream_meter *meter; /* ... is this */
    uint64_t epoch;
    int64_t allowance_ns;
    int8_t card; /* of the allowance, + 1 */
    bool per_thread;
} thread_state __attribute__((tls_model("initial-exec")));

/* ---- without a limit
 * ---------------------------------------------------------------------------------------------------- */

void throttle_count(void) {
    struct current_context where;
    struct vcuda_usage *usage = vcuda_usage();
    if (throttle_view.uncounted && usage && context_current(&where) && where.card >= 0)
        __atomic_fetch_add(&usage->card[where.card].launches, throttle_view.uncounted, __ATOMIC_RELAXED);
    throttle_view.uncounted = 0;
}

bool throttle_look(void) {
    const struct vcuda_limits_view *view = vcuda_limits();
    if (!view)
        return false;
    int saved = errno;
    if (throttle_view.uncounted)
        throttle_count();
    if (throttle_view.view != view || throttle_view.generation != view->generation) {
        throttle_view.limited = 0;
        for (uint32_t i = 0; i < view->card_count; i++)
            if (view->card[i].mode & VCUDA_MODE_CORES_LIMITED)
                throttle_view.limited |= 1u << i;
        throttle_view.view = view;
        throttle_view.generation = view->generation;
    }
    throttle_view.uncounted += !throttle_view.limited;
    errno = saved;
    return throttle_view.limited;
}

/* ---- which stream
 * --------------------------------------------------------------------------------------------------------- */

static struct stream_meter *__attribute__((noinline)) find_slowly(CUstream stream, bool per_thread, CUcontext context) {
    int saved = errno;
    uint64_t epoch = __atomic_load_n(&meter_epoch, __ATOMIC_SEQ_CST);
    struct stream_meter *meter = stream_meter_of(stream, per_thread);
    thread_state.stream = stream;
    thread_state.per_thread = per_thread;
    thread_state.context = context;
    thread_state.meter = meter;
    thread_state.epoch = epoch;
    errno = saved;
    return meter;
}

/* The null streams are the current context's; a handle says all by itself. */
static struct stream_meter *find(CUstream stream, bool per_thread) {
    CUcontext context = NULL;
    if ((uintptr_t)stream <= 2 && real.cuCtxGetCurrent(&context) != CUDA_SUCCESS)
        return NULL;
    if (thread_state.stream == stream && thread_state.context == context && thread_state.per_thread == per_thread &&
        thread_state.meter && thread_state.epoch == __atomic_load_n(&meter_epoch, __ATOMIC_RELAXED))
        return thread_state.meter;
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
    struct timespec time = {.tv_nsec = (long)bucket_nap(left_ns)};
    nanosleep(&time, NULL);
    wait->now = vcuda_now_ns();
}

/* How long until there may be room in the queue ahead of the card; 0: now. The card is busy meanwhile. */
static uint64_t try_room(const struct vcuda_card_usage *usage, const struct stream_meter *meter, bool unknown) {
    uint64_t ahead = __atomic_load_n(&meter_ahead_ns[meter->card], __ATOMIC_RELAXED);
    uint64_t most = bucket_ahead(__atomic_load_n(&usage->longest_ns, __ATOMIC_RELAXED));
    if (ahead > most)
        return ahead - most > ROOM_NAP_NS ? ahead - most : ROOM_NAP_NS;
    return unknown && __atomic_load_n(&meter->unsettled, __ATOMIC_RELAXED) > UNKNOWN_MOST ? ROOM_NAP_NS : 0;
}

/* How long until the last window has room for more; 0: now. Work of other processes that is not measured yet is not
 * seen: it is some milliseconds. Where others are at work on the card, what credit there is may be what they kept this
 * container from having, and is no pause's. */
static uint64_t try_window(const struct vcuda_card_usage *usage, const struct vcuda_limits_view *view, int card,
                           uint32_t share, uint64_t now) {
    static struct window_cap caps[VCUDA_MAX_CARDS];
    uint64_t ahead = __atomic_load_n(&meter_ahead_ns[card], __ATOMIC_RELAXED);
    uint64_t used = __atomic_load_n(&usage->busy_ns, __ATOMIC_RELAXED) + ahead;
    uint64_t full = window_cap_wait_ns(&caps[card], view->card[card].window_ns, share, used, now);
    return bucket_sharers(view, card, now) > 256 ? 0 : full;
}

/* How long until work that costs `ns` may start; 0: now, and a slice is paid for. */
static uint64_t try_credit(struct vcuda_card_usage *usage, const struct vcuda_limits_view *view,
                           const struct stream_meter *meter, const struct wait *wait, uint64_t ns) {
    const struct vcuda_card_limits *limits = &view->card[meter->card];
    uint32_t share = bucket_share(view, meter->card, wait->now);
    int64_t credit = bucket_refill(usage, limits, share, wait->now);
    uint64_t slice = bucket_slice(share);
    if (slice < ns)
        slice = ns;
    uint64_t debt = bucket_debt(limits->debt_ns, __atomic_load_n(&usage->longest_ns, __ATOMIC_RELAXED));
    int64_t floor = -(int64_t)bucket_seniority(wait->now - wait->since, share, debt);
    uint64_t full = try_window(usage, view, meter->card, share, wait->now);
    if (share >= BUCKET_WHOLE_Q8) /* the card itself is the limit */
        floor = INT64_MIN;
    else if (full)
        return full;
    if (bucket_take(usage, slice, floor)) {
        thread_state.allowance_ns += (int64_t)(slice - ns);
        return 0;
    }
    return bucket_wall((uint64_t)(credit < floor ? floor - credit : 0) + 1, share);
}

/* Give back what is left for another card. */
static void change_card(struct vcuda_usage *usage, int card) {
    if (thread_state.card && thread_state.allowance_ns > 0 && usage)
        __atomic_fetch_add(&usage->card[thread_state.card - 1].credit_ns, thread_state.allowance_ns, __ATOMIC_RELAXED);
    thread_state.allowance_ns = 0;
    thread_state.card = (int8_t)(card + 1);
}

/* So long that work of other processes or cards may be waiting for this. */
static bool is_too_long(const struct vcuda_card_usage *usage, const struct vcuda_limits_view *view, int card,
                        const struct wait *wait) {
    uint64_t debt = bucket_debt(view->card[card].debt_ns, __atomic_load_n(&usage->longest_ns, __ATOMIC_RELAXED));
    return wait->now - wait->since > bucket_guard(debt, bucket_share(view, card, wait->now));
}

/* May the work go ahead? If not, this has slept for a while. */
static bool proceed(struct vcuda_card_usage *usage, struct stream_meter *meter, struct wait *wait, uint64_t ns,
                    bool unknown) {
    const struct vcuda_limits_view *view = vcuda_limits();
    if (!is_limited(view, meter->card)) {
        bucket_force(usage, ns);
        return true;
    }
    uint64_t room = try_room(usage, meter, unknown), left = room;
    if (!room && thread_state.allowance_ns >= (int64_t)ns)
        thread_state.allowance_ns -= (int64_t)ns;
    else if (!room)
        left = try_credit(usage, view, meter, wait, ns);
    if (!left)
        return true;
    if (is_too_long(usage, view, meter->card, wait)) {
        __atomic_fetch_add(&usage->starved, 1, __ATOMIC_RELAXED);
        bucket_force(usage, ns);
        return true;
    }
    if (wait->now == wait->since)
        stream_meter_flush(thread_state.stream,
                           thread_state.per_thread); /* the card may be idle from here on: that is no work */
    uint64_t before = wait->now;
    rest(wait, left);
    wait->throttled_ns += room ? 0 : wait->now - before;
    return false;
}

static void __attribute__((noinline)) pay_slowly(struct stream_meter *meter, uint64_t ns, bool unknown) {
    struct vcuda_usage *usage = vcuda_usage();
    int saved = errno;
    if (thread_state.card != meter->card + 1)
        change_card(usage, meter->card);
    struct wait wait = {.since = vcuda_now_ns()};
    wait.now = wait.since;
    while (usage && !__atomic_load_n(&meter->context_meter->lost, __ATOMIC_RELAXED) &&
           !proceed(&usage->card[meter->card], meter, &wait, ns, unknown))
        ;
    if (wait.throttled_ns)
        __atomic_fetch_add(&usage->card[meter->card].throttle_ns, wait.throttled_ns, __ATOMIC_RELAXED);
    errno = saved;
}

static void pay(struct stream_meter *meter, struct cost *cost, uint64_t ns) {
    bool unknown = !cost_seen(cost);
    if (thread_state.card == meter->card + 1 && thread_state.allowance_ns >= (int64_t)ns && !unknown)
        thread_state.allowance_ns -= (int64_t)ns;
    else
        pay_slowly(meter, ns, unknown);
}

/* ---- the two ends of a call
 * ---------------------------------------------------------------------------------------------------- */

bool throttle_begin(struct throttled_work *work, CUstream stream, bool per_thread, const void *what, uint64_t size) {
    if (__builtin_expect(__atomic_load_n(&meter_captures, __ATOMIC_ACQUIRE) != 0, 0) &&
        stream_is_capturing(stream, per_thread))
        return false;
    struct stream_meter *meter = find(stream, per_thread);
    if (!meter || !(throttle_view.limited >> meter->card & 1))
        return false;
    struct cost *cost = cost_find(cost_key(what, size));
    work->meter = meter;
    work->cost = cost;
    work->paid_ns = cost_ns(cost);
    pay(meter, cost, work->paid_ns);
    work->span = timing_span_take(meter);
    if (work->span && !work->span->launches)
        meter_thread_wake();
    if (work->span)
        timing_span_add(work->span, cost, work->paid_ns);
    return true;
}

/* xorshift: which launches are measured alone, programs cannot foretell. */
static bool is_sampled(void) {
    if (!thread_state.dice)
        thread_state.dice = (uint32_t)vcuda_now_ns() | 1;
    thread_state.dice ^= thread_state.dice << 13;
    thread_state.dice ^= thread_state.dice >> 17;
    thread_state.dice ^= thread_state.dice << 5;
    return !(thread_state.dice & MEASURE_ONE_IN_MASK);
}

static void __attribute__((noinline)) close_slowly(struct timing_span *span) {
    int saved = errno;
    timing_span_close(span, vcuda_now_ns());
    errno = saved;
}

/* No span was to be had: what is expected is what it cost. */
static void __attribute__((noinline)) count_unmeasured(const struct throttled_work *work, CUresult result) {
    struct vcuda_usage *usage = vcuda_usage();
    if (!usage || result != CUDA_SUCCESS)
        return;
    __atomic_fetch_add(&usage->card[work->meter->card].busy_ns, work->paid_ns, __ATOMIC_RELAXED);
    __atomic_fetch_add(&usage->card[work->meter->card].launches, 1, __ATOMIC_RELAXED);
}

void throttle_end(struct throttled_work *work, CUresult result) {
    struct timing_span *span = work->span;
    if (result != CUDA_SUCCESS)
        thread_state.allowance_ns += (int64_t)work->paid_ns;
    if (!span) {
        count_unmeasured(work, result);
        return;
    }
    if (result != CUDA_SUCCESS)
        timing_span_remove(span, work->cost, work->paid_ns);
    if (span->expected_ns >= TIMING_SPAN_NS || span->launches >= TIMING_SPAN_LAUNCHES ||
        cost_seen(work->cost) < MEASURE_FIRST || is_sampled())
        close_slowly(span);
    else
        timing_span_put(work->meter, span);
}
