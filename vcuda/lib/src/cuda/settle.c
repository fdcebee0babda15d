/* Settling timing spans: what they took by the card's own clock, against what they had paid.
 *
 * One thread at a time does it, the helper as a rule, for as long as the few calls need that it makes of the driver;
 * the lock is one that others try and, where they must have it, wait for a second at most. While a thread may be ending
 * a context it holds the lock, so that nobody touches an event of that context.
 */
#include "attachment.h"
#include "cuda/context_registry.h"
#include "cuda/gpu_time.h"
#include "cuda/held_idle.h"
#include "cuda/settle.h"
#include "cuda/sharers.h"
#include "cuda/stream_meter.h"
#include "cuda/timeline.h"
#include "interposer.h"
#include "page.h"
#include "token_bucket.h"

#include <errno.h>

#define CUDA_ERROR_NOT_READY 600
#define QUIET_NS 400000u             /* no launch for so long: the span is closed for the program */
#define REFERENCE_MOST_NS 4000000000 /* a float of milliseconds is then exact to half a microsecond */

static uint32_t passes;
static __thread bool suspended __attribute__((tls_model("initial-exec")));

void settle_suspend(void) {
    if (!__atomic_load_n(&context_meters, __ATOMIC_ACQUIRE))
        return;
    suspended = meter_lock(true);
    __atomic_fetch_add(&meter_epoch, 1, __ATOMIC_SEQ_CST);
}

/* ---- one span
 * ----------------------------------------------------------------------------------------------------------- */

static int64_t time_of(struct context_meter *context_meter, CUevent event, bool *failed) {
    float ms = 0;
    *failed |= real.cuEventElapsedTime(&ms, context_meter->reference, event) != CUDA_SUCCESS;
    return context_meter->reference_ns + (int64_t)((double)ms * 1e6);
}

/* The span's start becomes what times are relative to; the span gets a new event when it is next used. */
static void refer_to(struct timing_span *span, int64_t at) {
    CUevent old = span->context_meter->reference;
    span->context_meter->reference = span->start;
    span->context_meter->reference_ns = at;
    span->start = old;
    if (!old) { /* make both anew */
        span->start = span->end;
        span->end = NULL;
    }
}

/* When the span's work ran, by its events; false if they cannot be read. */
static bool read_events(struct timing_span *span, uint32_t stretch_q8, struct gpu_interval *interval) {
    struct context_meter *context_meter = span->context_meter;
    bool failed = false, first = !context_meter->reference;
    float ms = 0;
    int64_t from = first ? (int64_t)span->facts.launched_at : time_of(context_meter, span->start, &failed);
    failed |= real.cuEventElapsedTime(&ms, span->start, span->end) != CUDA_SUCCESS;
    if (failed)
        return false;
    *interval = gpu_time_measured(&span->facts, from, (int64_t)((double)ms * 1e6), stretch_q8, &context_meter->clock);
    if (first || from - context_meter->reference_ns > REFERENCE_MOST_NS)
        refer_to(span, from);
    return true;
}

static void teach(struct timing_span *span, uint64_t own, uint64_t charged) {
    if (span->kinds == 1)
        cost_measured(span->kind[0].cost, own / span->launches, charged / span->launches);
    else
        for (uint32_t i = 0; i < span->kinds; i++)
            if (span->kind[i].count)
                cost_corrected(span->kind[i].cost, own, charged, span->facts.expected_ns);
}

/* What was new of an interval that ended at `to` of the card's time. Work is settled in about the order in which it
 * ran, so the new part is the last one. */
static void tell_host(const struct context_meter *context_meter, int64_t to, int64_t fresh) {
    int64_t end = to - context_meter->clock.offset_ns;
    timeline_add(&vcuda_usage()->timeline[context_meter->card], end - fresh, end);
    held_idle_ran(&vcuda_usage()->card[context_meter->card], end > 0 ? (uint64_t)end : 0);
}

/* What it costs a card of its own, by what was measured while the host spoke; 0: not all of its work was. */
static uint64_t known_ns(const struct timing_span *span) {
    uint64_t ns = 0, launches = 0;
    for (uint32_t i = 0; i < span->kinds; i++) {
        uint64_t each = cost_lately_ns(span->kind[i].cost);
        if (span->kind[i].count && !each)
            return 0;
        ns += each * span->kind[i].count;
        launches += span->kind[i].count;
    }
    return launches == span->launches ? ns : 0;
}

static void remember(struct timing_span *span, uint64_t own, uint64_t now) {
    for (uint32_t i = 0; i < span->kinds; i++)
        if (span->kinds == 1)
            cost_remember(span->kind[i].cost, own / span->launches, now);
        else if (span->kind[i].count && span->facts.expected_ns)
            cost_remember(
                span->kind[i].cost,
                (uint64_t)((double)cost_ns(span->kind[i].cost) * (double)own / (double)span->facts.expected_ns), now);
}

/* GPU time of the span: how much of its interval was new. What was measured is learnt from. */
static uint64_t charge(struct timing_span *span, const struct vcuda_limits_view *view, bool measured, uint64_t now) {
    struct context_meter *context_meter = span->context_meter;
    struct stream_meter *meter = span->meter;
    uint32_t divided = sharers_now(view, context_meter->card, now), gain = view->card[context_meter->card].gain_q8;
    struct gpu_interval ran;
    measured = measured && read_events(span, divided, &ran);
    if (!measured)
        ran = gpu_time_expected(&span->facts, meter->settled_to, divided, &context_meter->clock);
    uint64_t took = (uint64_t)(ran.to - ran.from), known = measured ? known_ns(span) : 0;
    if (known)
        divided = sharers_during(view, context_meter->card, now, took, known);
    if (measured && !bucket_is_silent(view, now))
        remember(span, bucket_used(took, divided, 256), now);
    int64_t fresh = busy_intervals_add(&context_meter->busy, ran.from, ran.to);
    uint64_t used = bucket_used((uint64_t)fresh, divided, gain);
    tell_host(context_meter, ran.to, fresh);
    if (ran.to > meter->settled_to)
        meter->settled_to = ran.to;
    if (measured) {
        uint64_t own = bucket_used(took, divided, gain);
        teach(span, own, used);
        stream_meter_corrected(meter, span->facts.expected_ns, own);
        bucket_note_longest(&vcuda_usage()->card[context_meter->card], own / span->launches);
    }
    return used;
}

static void settle(struct timing_span *span, bool measured, uint64_t now) {
    const struct vcuda_limits_view *view = vcuda_limits();
    struct vcuda_usage *usage = vcuda_usage();
    struct stream_meter *meter = span->meter;
    int card = span->context_meter->card;
    bool counts = view && usage && (uint32_t)card < view->card_count;
    uint64_t used = counts && span->launches ? charge(span, view, measured, now) : 0;
    /* Ahead or used: the two are read together, so nothing slow comes between. */
    __atomic_fetch_sub(&meter_ahead_ns[card], span->paid_ns, __ATOMIC_RELAXED);
    if (counts) {
        bucket_settle(&usage->card[card], &view->card[card], used, span->paid_ns);
        bucket_note_window(&usage->card[card], used, now);
        __atomic_fetch_add(&usage->card[card].launches, span->launches, __ATOMIC_RELAXED);
    }
    timing_span_free(span);
    stream_meter_settled(meter);
}

/* ---- a look at everything
 * -------------------------------------------------------------------------------------------------- */

static void collect(struct context_meter *context_meter) {
    struct timing_span *reversed = NULL, *span = __atomic_exchange_n(&context_meter->closed, NULL, __ATOMIC_ACQUIRE);
    while (span) {
        span->after = reversed;
        reversed = span;
        span = __atomic_load_n(&span->next, __ATOMIC_RELAXED);
    }
    *context_meter->waiting_end = reversed;
    while (*context_meter->waiting_end)
        context_meter->waiting_end = &(*context_meter->waiting_end)->after;
}

/* Errors that a context does not survive: its launches fail, and shall fail at once. */
static bool is_fatal(CUresult result) {
    return (result >= 700 && result < 720 && result != 702) || result == 46 || result == 201 || result == 214 ||
           result == 999;
}

static void settle_finished(struct context_meter *context_meter, uint64_t now) {
    struct timing_span **at = &context_meter->waiting;
    while (*at) {
        struct timing_span *span = *at;
        CUresult result = CUDA_SUCCESS;
        if (span->meter->blocked == passes)
            result = CUDA_ERROR_NOT_READY; /* an earlier one of the stream is not finished */
        else if (span->measured && !context_meter->lost)
            result = real.cuEventQuery(span->end);
        else if (now < span->closed_at + span->facts.expected_ns && !context_meter->lost)
            result = CUDA_ERROR_NOT_READY;
        if (result == CUDA_ERROR_NOT_READY) {
            span->meter->blocked = passes;
            at = &span->after;
            continue;
        }
        if (is_fatal(result))
            __atomic_store_n(&context_meter->lost, true, __ATOMIC_RELAXED);
        *at = span->after;
        if (context_meter->waiting_end == &span->after)
            context_meter->waiting_end = at;
        settle(span, span->measured && result == CUDA_SUCCESS && !context_meter->lost, now);
    }
}

/* When the first unfinished span should be finished, by what it was expected to cost. */
static uint64_t next_look(const struct context_meter *context_meter, uint64_t now,
                          const struct vcuda_limits_view *view) {
    const struct timing_span *span = context_meter->waiting;
    if (!span)
        return LOOK_MOST_NS;
    uint64_t due =
        span->closed_at + span->facts.expected_ns * (view ? sharers_now(view, context_meter->card, now) : 256) / 256;
    return due > now + LOOK_LEAST_NS ? due - now : LOOK_LEAST_NS;
}

/* The program has launched nothing more here for a while: close the span in its place. */
static void close_quiet(struct stream_meter *meter, int i, uint64_t now) {
    struct timing_span *span = __atomic_load_n(&meter->open[i], __ATOMIC_ACQUIRE);
    uint32_t launches = span ? __atomic_load_n(&span->launches, __ATOMIC_RELAXED) : 0;
    if (!span || span != meter->quiet[i].span || launches != meter->quiet[i].launches) {
        meter->quiet[i].span = span;
        meter->quiet[i].launches = launches;
        meter->quiet[i].since = now;
        return;
    }
    if (now - meter->quiet[i].since < QUIET_NS || __atomic_load_n(&meter_captures, __ATOMIC_SEQ_CST))
        return;
    __atomic_store_n(&meter_closing, meter, __ATOMIC_SEQ_CST);
    if (__atomic_compare_exchange_n(&meter->open[i], &span, NULL, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
        if (meter->others_may_record && !meter->context_meter->lost)
            timing_span_close(span);
        else
            timing_span_drop(span);
    }
    __atomic_store_n(&meter_closing, NULL, __ATOMIC_RELEASE);
}

static void close_all_quiet(struct context_meter *context_meter, uint64_t now) {
    for (int i = 0; i < STREAM_METER_LISTS; i++)
        for (struct stream_meter *meter = __atomic_load_n(&stream_meters[i], __ATOMIC_ACQUIRE); meter;
             meter = meter->next)
            if (meter->context_meter == context_meter && __atomic_load_n(&meter->key[0], __ATOMIC_ACQUIRE))
                for (int k = 0; k < TIMING_SPANS_OPEN; k++)
                    close_quiet(meter, k, now);
}

static bool has_work(const struct context_meter *context_meter) {
    struct vcuda_slot *slot = vcuda_slot();
    return context_meter->waiting || (slot && __atomic_load_n(&slot->inflight[context_meter->card], __ATOMIC_RELAXED));
}

/* All of an ended context's work is settled as expected; its events went with it. */
static void bury(struct context_meter *context_meter, uint64_t now) {
    for (int i = 0; i < STREAM_METER_LISTS; i++)
        for (struct stream_meter *meter = __atomic_load_n(&stream_meters[i], __ATOMIC_ACQUIRE); meter;
             meter = meter->next) {
            if (meter->context_meter != context_meter)
                continue;
            for (int k = 0; k < TIMING_SPANS_OPEN; k++) {
                struct timing_span *span = __atomic_exchange_n(&meter->open[k], NULL, __ATOMIC_ACQUIRE);
                if (span)
                    timing_span_drop(span);
            }
            __atomic_store_n(&meter->key[0], 0, __ATOMIC_RELEASE);
            __atomic_store_n(&meter->use, METER_ENDED, __ATOMIC_RELEASE);
        }
    collect(context_meter);
    context_meter->lost = true;
    settle_finished(context_meter, now);
    context_meter->reference = NULL;
    context_meter->busy.count = 0;
    __atomic_store_n(&context_meter->owner, 0, __ATOMIC_RELEASE);
}

void settle_resume(void) {
    if (!suspended)
        return;
    uint64_t now = vcuda_now_ns();
    passes++;
    for (struct context_meter *context_meter = context_meters; context_meter; context_meter = context_meter->next)
        if (context_meter->owner && context_id_of(context_meter->context) != context_meter->owner)
            bury(context_meter, now);
    __atomic_fetch_add(&meter_epoch, 1, __ATOMIC_SEQ_CST);
    suspended = false;
    meter_unlock();
}

static uint64_t look(struct context_meter *context_meter, uint64_t now) {
    CUcontext popped;
    collect(context_meter);
    if (!has_work(context_meter))
        return 0;
    struct vcuda_usage *usage = vcuda_usage();
    if (usage)
        __atomic_store_n(&usage->card[context_meter->card].last_busy_ns, now, __ATOMIC_RELAXED);
    sharers_look(vcuda_limits(), context_meter->card, now);
    bool pushed = real.cuCtxPushCurrent_v2(context_meter->context) == CUDA_SUCCESS;
    if (pushed)
        close_all_quiet(context_meter, now);
    collect(context_meter);
    settle_finished(context_meter, now);
    if (pushed)
        real.cuCtxPopCurrent_v2(&popped);
    return has_work(context_meter) ? next_look(context_meter, now, vcuda_limits()) : 0;
}

uint64_t settle_pass(void) {
    uint64_t next = 0, now = vcuda_now_ns();
    if (!meter_lock(false))
        return LOOK_LEAST_NS;
    int saved = errno, mode = 2; /* relaxed: a query of ours is no part of anybody's capture */
    bool captures = __atomic_load_n(&meter_captures, __ATOMIC_SEQ_CST) != 0;
    if (captures)
        captures = real.cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS;
    passes++;
    for (struct context_meter *context_meter = __atomic_load_n(&context_meters, __ATOMIC_ACQUIRE); context_meter;
         context_meter = context_meter->next) {
        uint64_t due = context_meter->owner ? look(context_meter, now) : 0;
        if (due && (!next || due < next))
            next = due;
    }
    if (captures)
        real.cuThreadExchangeStreamCaptureMode(&mode);
    meter_unlock();
    errno = saved;
    return next > LOOK_MOST_NS ? LOOK_MOST_NS : next;
}
