#include "attachment.h"
#include "cuda/admission.h"
#include "cuda/context_registry.h"
#include "cuda/gate.h"
#include "cuda/gate_passage.h"
#include "cuda/gate_wait.h"
#include "cuda/held_idle.h"
#include "cuda/meter_thread.h"
#include "cuda/settle.h"
#include "cuda/span_plan.h"
#include "cuda/stream_meter.h"
#include "cuda/throttle.h"
#include "fork.h"
#include "interposer.h"
#include "page.h"
#include "token_bucket.h"

#include <errno.h>
#include <time.h>

#define END_ONE_IN_MASK 31 /* a measured span ends early now and then: nothing hides behind an old average */
#define UNKNOWN_MOST 8     /* spans in flight on a stream while more work of unknown cost arrives */
#define ROOM_NAP_NS 250000u
#define PAUSE_NS 15000000u /* of a protected container that waits for credit: best-effort work runs meanwhile */

__thread struct throttle_view throttle_view __attribute__((tls_model("initial-exec")));

/* What else a thread remembers. Small: it lies in the space that the loader keeps for libraries opened late. */
static __thread struct thread_state {
    uint32_t dice;
    CUstream stream; /* the last launch's stream, as it was named, ... */
    CUcontext context;
    struct stream_meter *meter; /* ... is this */
    uint64_t epoch;
    struct measuring_budget budget;
    uint64_t own_paid_until; /* what it may spend on ends that nobody else records */
    bool per_thread;
    bool is_blocking;
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

static void look_at_classes(const struct vcuda_limits_view *view) {
    uint32_t gated = 0, tells = 0;
    throttle_view.limited = 0;
    for (uint32_t i = 0; i < view->card_count; i++) {
        uint32_t mode = view->card[i].mode, granted = view->card[i].granted_q8 != 0;
        throttle_view.limited |= (uint32_t)((mode & VCUDA_MODE_CORES_LIMITED) != 0) << i;
        gated |= (uint32_t)(granted && mode & VCUDA_MODE_BEST_EFFORT) << i;
        tells |= (uint32_t)(granted && mode & VCUDA_MODE_PROTECTED) << i;
    }
    throttle_view.gated = gated;
    throttle_view.classed = gated | tells;
    __atomic_store_n(&meter_gated, gated, __ATOMIC_RELAXED);
    __atomic_store_n(&meter_tells, tells, __ATOMIC_RELAXED);
}

/* The words first: limits read after them are theirs, or newer. */
static void remember(const struct vcuda_page_view *page_view) {
    uint64_t first = __atomic_load_n(&page_view->seen[0], __ATOMIC_ACQUIRE);
    uint64_t second = __atomic_load_n(&page_view->seen[1], __ATOMIC_ACQUIRE);
    if (throttle_view.limits && throttle_view.seen[0] == first && throttle_view.seen[1] == second)
        return;
    look_at_classes(__atomic_load_n(&page_view->current, __ATOMIC_ACQUIRE));
    throttle_view.seen[0] = first;
    throttle_view.seen[1] = second;
    throttle_view.limits = page_view->limits;
}

static void forget_in_child(void);

bool throttle_look(void) {
    const struct vcuda_page_view *page_view = __atomic_load_n(&vcuda_page_view, __ATOMIC_ACQUIRE);
    if (!page_view || !vcuda_limits())
        return false;
    int saved = errno;
    fork_forgets(forget_in_child);
    if (throttle_view.uncounted)
        throttle_count();
    remember(page_view);
    throttle_view.uncounted += !throttle_view.limited;
    errno = saved;
    return throttle_view.limited;
}

/* ---- credit in the process's hand
 * ------------------------------------------------------------------------------------------- */

/* Credit that the process has taken of the container's and not spent: a slice at a time, so that few launches touch
 * what processes share. It is no thread's own, or it would be lost with the thread. */
static struct {
    _Alignas(64) int64_t ns;
} pockets[VCUDA_MAX_CARDS];

static bool pocket_take(int card, uint64_t ns) {
    int64_t *pocket = &pockets[card].ns, left = __atomic_load_n(pocket, __ATOMIC_RELAXED);
    do
        if (left < (int64_t)ns)
            return false;
    while (!__atomic_compare_exchange_n(pocket, &left, left - (int64_t)ns, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return true;
}

static void pocket_put(int card, uint64_t ns) {
    __atomic_fetch_add(&pockets[card].ns, (int64_t)ns, __ATOMIC_RELAXED);
}

/* In the child of a fork: what its parent has paid for is not its own, and it has no pages yet. */
static void forget_in_child(void) {
    for (int card = 0; card < VCUDA_MAX_CARDS; card++)
        pockets[card].ns = 0;
    throttle_view = (struct throttle_view){0};
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

/* Is a meter that the thread remembers for a handle still that handle's? Streams end without a word to each thread. */
static bool is_still_of(const struct stream_meter *meter, CUstream handle) {
    return __atomic_load_n(&meter->use, __ATOMIC_ACQUIRE) == METER_LIVES &&
           __atomic_load_n(&meter->key[0], __ATOMIC_RELAXED) == (uint64_t)(uintptr_t)handle;
}

/* The null streams are the current context's; a handle says all by itself. */
static struct stream_meter *find(CUstream stream, bool per_thread) {
    CUcontext context = NULL;
    bool is_handle = (uintptr_t)stream > 2;
    if (!is_handle && real.cuCtxGetCurrent(&context) != CUDA_SUCCESS)
        return NULL;
    struct stream_meter *meter = thread_state.meter;
    if (meter && thread_state.stream == stream && thread_state.context == context &&
        thread_state.per_thread == per_thread &&
        thread_state.epoch == __atomic_load_n(&meter_epoch, __ATOMIC_RELAXED) &&
        (!is_handle || is_still_of(meter, stream)))
        return meter;
    return find_slowly(stream, per_thread, context);
}

/* ---- waiting for credit
 * ----------------------------------------------------------------------------------------------------- */

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
    struct timespec time = {.tv_nsec = (long)bucket_nap(left_ns)};
    nanosleep(&time, NULL);
    wait->now = vcuda_now_ns();
}

/* How long until there is credit for the work; 0: it is paid. A protected container that has to wait does so for a
 * while at once: best-effort work can use a pause of that length, and none of those between kernels. */
static uint64_t credit_left_ns(struct wait *wait, const struct admission *admission, uint64_t ns) {
    uint64_t left, taken = 0;
    if (wait->resumes > wait->now)
        return wait->resumes - wait->now;
    if (pocket_take(admission->card, ns))
        return 0;
    if ((left = admission_credit_ns(admission, ns, &taken)) == 0) {
        pocket_put(admission->card, taken - ns);
        return 0;
    }
    if (__atomic_load_n(&meter_tells, __ATOMIC_RELAXED) >> admission->card & 1)
        wait->resumes = wait->now + PAUSE_NS;
    return left;
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
    struct admission admission = {.usage = usage,
                                  .view = view,
                                  .cap = &caps[meter->card],
                                  .card = meter->card,
                                  .ahead_ns = __atomic_load_n(&meter_ahead_ns[meter->card], __ATOMIC_RELAXED),
                                  .gated_ns = gate_deferred_ns(meter->card),
                                  .now = wait->now,
                                  .waited_ns = wait->now - wait->since};
    uint64_t room = admission_room_ns(&admission);
    if (!room && unknown && __atomic_load_n(&meter->unsettled, __ATOMIC_RELAXED) > UNKNOWN_MOST)
        room = ROOM_NAP_NS;
    uint64_t left = room ? room : credit_left_ns(wait, &admission, ns);
    if (!left)
        return true;
    if (admission_is_overdue(&admission)) {
        __atomic_fetch_add(&usage->starved, 1, __ATOMIC_RELAXED);
        bucket_force(usage, ns);
        return true;
    }
    if (wait->now == wait->since)
        stream_meter_flush(thread_state.stream,
                           thread_state.per_thread); /* the card may be idle from here on: that is no work */
    uint64_t before = wait->now;
    rest(wait, left);
    measuring_is_free(&thread_state.budget);
    wait->throttled_ns += room ? 0 : wait->now - before;
    if (!room)
        held_idle_waited(vcuda_usage(), meter->card, wait->since, wait->now);
    return false;
}

static void __attribute__((noinline)) pay_slowly(struct stream_meter *meter, uint64_t ns, bool unknown) {
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

static void pay(struct stream_meter *meter, struct cost *cost, uint64_t ns) {
    bool unknown = !cost_seen(cost);
    if (unknown || !pocket_take(meter->card, ns))
        pay_slowly(meter, ns, unknown);
}

static bool is_gated(const struct stream_meter *meter) {
    return __builtin_expect(throttle_view.gated >> meter->card & 1, 0);
}

static bool is_classed(const struct stream_meter *meter) {
    return __builtin_expect(throttle_view.classed >> meter->card & 1, 0);
}

/* Measured often, on both sides of a gate: what is in flight is to be known, and seen to end when it does. */
static void __attribute__((noinline)) begin_classed(struct stream_meter *meter) {
    if (is_gated(meter))
        gate_wanted(meter);
    measuring_is_free(&thread_state.budget);
}

static bool __attribute__((noinline)) wait_at_gate(struct stream_meter *meter, const struct cost *cost, uint64_t ns) {
    struct gated_launch launch = {
        .expected_ns = ns, .is_unknown = !cost_seen(cost), .may_defer = !thread_state.is_blocking};
    bool has_turn = gate_wait(meter, &launch);
    measuring_is_free(&thread_state.budget);
    return has_turn;
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
    work->paid_ns = cost_charge_ns(cost);
    if (is_classed(meter))
        begin_classed(meter);
    pay(meter, cost, work->paid_ns);
    work->has_turn = is_gated(meter) && wait_at_gate(meter, cost, work->paid_ns);
    work->span = timing_span_take(meter, cost, &thread_state.budget);
    if (!work->span)
        return true;
    work->expected_ns = cost_ns(cost);
    timing_span_add(work->span, cost, work->expected_ns, work->paid_ns);
    return true;
}

bool throttle_begin_blocking(struct throttled_work *work, CUstream stream, bool per_thread, const void *what,
                             uint64_t size) {
    thread_state.is_blocking = true;
    bool ours = throttle_begin(work, stream, per_thread, what, size);
    thread_state.is_blocking = false;
    return ours;
}

/* xorshift: which launches end a span early, programs cannot foretell. */
static bool is_sampled(void) {
    if (!thread_state.dice)
        thread_state.dice = (uint32_t)vcuda_now_ns() | 1;
    thread_state.dice ^= thread_state.dice << 13;
    thread_state.dice ^= thread_state.dice >> 17;
    thread_state.dice ^= thread_state.dice << 5;
    return !(thread_state.dice & END_ONE_IN_MASK);
}

static void __attribute__((noinline)) close_slowly(struct timing_span *span) {
    int saved = errno;
    timing_span_end(span, &thread_state.budget);
    errno = saved;
}

/* No span was to be had: what is expected is what it cost. */
static void __attribute__((noinline)) count_unmeasured(const struct throttled_work *work, CUresult result) {
    struct context_meter *context_meter = work->meter->context_meter;
    if (result != CUDA_SUCCESS)
        return;
    __atomic_fetch_add(&context_meter->unmeasured_ns, work->paid_ns, __ATOMIC_RELAXED);
    __atomic_fetch_add(&context_meter->unmeasured, 1, __ATOMIC_RELAXED);
}

static void end(struct throttled_work *work, CUresult result) {
    struct timing_span *span = work->span;
    if (result != CUDA_SUCCESS)
        pocket_put(work->meter->card, work->paid_ns);
    if (!span) {
        count_unmeasured(work, result);
        return;
    }
    bool first = span->launches == 1;
    if (result != CUDA_SUCCESS)
        timing_span_remove(span, work->cost, work->expected_ns, work->paid_ns);
    if (span_plan_ends(&span->facts, span->measured, thread_state.budget.left_ns > 0, span->launches,
                       cost_seen(work->cost)) ||
        (span->measured && is_sampled()) || (is_gated(work->meter) && span->facts.expected_ns >= GATE_SPAN_NS) ||
        (span->measured && !work->meter->others_may_record &&
         span_plan_ends_own(&thread_state.own_paid_until, vcuda_now_ns())))
        close_slowly(span);
    else
        timing_span_put(work->meter, span);
    if (first)
        meter_thread_wake(); /* only now: it takes longer than many a kernel */
}

void throttle_end(struct throttled_work *work, CUresult result) {
    end(work, result);
    if (__builtin_expect(work->has_turn, 0))
        gate_launched(work->meter->card);
}
