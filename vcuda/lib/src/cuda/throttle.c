#include "cuda/throttle.h"
#include "cuda/gate_passage.h"
#include "cuda/gate_wait.h"
#include "cuda/meter_thread.h"
#include "cuda/payment.h"
#include "cuda/stream_meter.h"
#include "interposer.h"
#include "page.h"

#include <errno.h>

/* What else a thread remembers. Small: it lies in the space that the loader keeps for libraries opened late. */
static __thread struct thread_state {
    CUstream stream; /* the last launch's stream, as it was named, ... */
    CUcontext context;
    struct stream_meter *meter; /* ... is this */
    uint64_t epoch;
    bool per_thread;
    bool is_blocking;
} thread_state __attribute__((tls_model("initial-exec")));

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

static void pay(struct stream_meter *meter, struct cost *cost, uint64_t ns) {
    bool unknown = !cost_seen(cost);
    if (unknown || !pocket_take(meter->card, ns))
        payment_wait(meter, ns, unknown);
}

static bool is_gated(const struct stream_meter *meter) {
    return __builtin_expect(throttle_view.gated >> meter->card & 1, 0);
}

static bool __attribute__((noinline)) wait_at_gate(struct stream_meter *meter, const struct cost *cost, uint64_t ns) {
    struct gated_launch launch = {
        .expected_ns = ns, .is_unknown = !cost_seen(cost), .may_defer = !thread_state.is_blocking};
    return gate_wait(meter, &launch);
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
    if (is_gated(meter))
        gate_wanted(meter);
    pay(meter, cost, work->paid_ns);
    work->has_turn = is_gated(meter) && wait_at_gate(meter, cost, work->paid_ns);
    work->span = timing_span_take(meter, cost);
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

static void __attribute__((noinline)) close_slowly(struct timing_span *span) {
    int saved = errno;
    timing_span_end(span);
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
        timing_span_remove(span, work->expected_ns, work->paid_ns);
    if (timing_span_is_over(span))
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
