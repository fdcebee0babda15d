/* Settling timing spans: what they cost (span_charge.c), against what they had paid.
 *
 * One thread at a time does it, the helper as a rule, for as long as the few calls need that it makes of the driver;
 * the lock is one that others try and, where they must have it, wait for a second at most. What a thread may be ending
 * just now is passed over, so that nobody touches an event of such a context.
 */
#include "attachment.h"
#include "cuda/context_registry.h"
#include "cuda/settle.h"
#include "cuda/sharers.h"
#include "cuda/span_charge.h"
#include "cuda/context_meter.h"
#include "cuda/stream_meter.h"
#include "interposer.h"
#include "page.h"
#include "slots.h"
#include "token_bucket.h"

#include <errno.h>

#define CUDA_ERROR_NOT_READY 600
#define QUIET_NS 400000u /* no launch for so long: the span is closed for the program */

static uint32_t passes;

/* Who settles now may have asked before the end was said to begin. */
void settle_suspend(struct context_end *end, uint64_t id) {
    context_end_begins(end, id);
    if (meter_lock(true))
        meter_unlock();
    __atomic_fetch_add(&meter_epoch, 1, __ATOMIC_SEQ_CST);
}

/* Has a process of the container waited for credit since the last call? */
static bool was_held(const struct vcuda_card_usage *usage, int card) {
    static uint64_t seen[VCUDA_MAX_CARDS];
    uint64_t held_ns = __atomic_load_n(&usage->throttle_ns, __ATOMIC_RELAXED);
    bool held = held_ns != seen[card];
    seen[card] = held_ns;
    return held;
}

static void settle(struct timing_span *span, bool ended, uint64_t now) {
    const struct vcuda_limits_view *view = vcuda_limits();
    struct vcuda_usage *usage = vcuda_usage();
    struct stream_meter *meter = span->meter;
    int card = span->context_meter->card;
    bool counts = view && usage && (uint32_t)card < view->card_count;
    uint64_t used = counts && span->launches ? span_charge(span, view, ended, now) : 0;
    /* Ahead or used: the two are read together, so nothing slow comes between. */
    __atomic_fetch_sub(&meter_ahead_ns[card], span->paid_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&meter_head_since[card], now, __ATOMIC_RELAXED);
    if (counts) {
        bucket_settle(&usage->card[card], &view->card[card], used, span->paid_ns);
        bucket_note_window(&usage->card[card], used, now);
        meter_window.worked_ns += used;
        meter_window.held |= was_held(&usage->card[card], card);
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

/* When work whose end is not recorded is taken to have ended: after what its stream ran before. */
static uint64_t expected_end(const struct timing_span *span) {
    int64_t before = span->meter->settled_to - span->context_meter->clock.offset_ns;
    int64_t launched = (int64_t)span->facts.launched_at;
    return (uint64_t)(before > launched ? before : launched) + span->facts.expected_ns;
}

/* Is the recorded end of a later span of its stream reached? Then this one has ended, whatever was expected of it. */
static bool is_overtaken(const struct timing_span *span) {
    struct stream_meter *meter = span->meter;
    if (meter->sought == passes)
        return meter->found_finished;
    const struct timing_span *next = span->after;
    while (next && (next->meter != meter || !next->ends))
        next = next->after;
    meter->sought = passes;
    meter->found_finished = next && real.cuEventQuery(next->end) == CUDA_SUCCESS;
    return meter->found_finished;
}

/* Was nothing launched on its stream since? */
static bool is_last(const struct timing_span *span) {
    const struct timing_span *next = span->after;
    for (int i = 0; i < TIMING_SPANS_OPEN; i++)
        if (__atomic_load_n(&span->meter->open[i], __ATOMIC_RELAXED))
            return false;
    while (next && next->meter != span->meter)
        next = next->after;
    return !next;
}

/* Asked after meter_closing was set: whoever ends the stream waits from then on. */
static bool may_record(const struct stream_meter *meter) {
    return meter->others_may_record && !meter->context_meter->lost &&
           __atomic_load_n(&meter->use, __ATOMIC_SEQ_CST) == METER_LIVES;
}

/* Does work that should have ended by what was expected of it go on? Then its end is recorded. Not while others of the
 * container's processes may just have their turn: for the record alone the card would turn twice more. */
#define OTHERS_TURN_NS 3000000u

static bool runs_on(struct timing_span *span, uint64_t now) {
    bool alone = vcuda_usage() && slots_busy(vcuda_usage(), span->meter->card) < 2;
    if (!alone && now < expected_end(span) + OTHERS_TURN_NS)
        return false;
    __atomic_store_n(&meter_closing, span->meter, __ATOMIC_SEQ_CST);
    bool late =
        may_record(span->meter) && !__atomic_load_n(&meter_captures, __ATOMIC_SEQ_CST) && timing_span_is_late(span);
    __atomic_store_n(&meter_closing, NULL, __ATOMIC_RELEASE);
    return late;
}

static void settle_finished(struct context_meter *context_meter, uint64_t now) {
    struct timing_span **at = &context_meter->waiting;
    while (*at) {
        struct timing_span *span = *at;
        CUresult result = CUDA_SUCCESS;
        if (span->meter->blocked == passes)
            result = CUDA_ERROR_NOT_READY; /* an earlier one of the stream is not finished */
        else if (span->ends && !context_meter->lost)
            result = real.cuEventQuery(span->end);
        else if (now < expected_end(span) && !context_meter->lost && !is_overtaken(span))
            result = CUDA_ERROR_NOT_READY;
        else if (is_last(span) && runs_on(span, now))
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
        if (span->ends)
            span->meter->sought = 0;
        settle(span, span->ends && result == CUDA_SUCCESS && !context_meter->lost, now);
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
    if (span == TIMING_SPAN_HELD)
        span = NULL;
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
    if (timing_span_hold_this(&meter->open[i], span)) {
        if (span->facts.launched_at > meter->quiet[i].since) { /* it has become another */
            meter->quiet[i].span = NULL;
            timing_span_put(meter, span);
        } else if (may_record(meter))
            timing_span_close_quiet(span, meter->quiet[i].since);
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

/* What no span was free for is settled as expected. */
static void count_unmeasured(struct context_meter *context_meter) {
    const struct vcuda_limits_view *view = vcuda_limits();
    struct vcuda_usage *usage = vcuda_usage();
    if (!__atomic_load_n(&context_meter->unmeasured, __ATOMIC_RELAXED))
        return;
    uint64_t launches = __atomic_exchange_n(&context_meter->unmeasured, 0, __ATOMIC_RELAXED);
    uint64_t ns = __atomic_exchange_n(&context_meter->unmeasured_ns, 0, __ATOMIC_RELAXED);
    if (!view || !usage || (uint32_t)context_meter->card >= view->card_count)
        return;
    __atomic_fetch_add(&usage->card[context_meter->card].busy_ns, ns, __ATOMIC_RELAXED);
    __atomic_fetch_add(&usage->card[context_meter->card].launches, launches, __ATOMIC_RELAXED);
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
                struct timing_span *span = timing_span_hold(&meter->open[k]);
                if (span)
                    timing_span_drop(span);
            }
            __atomic_store_n(&meter->key[0], 0, __ATOMIC_RELEASE);
            __atomic_store_n(&meter->use, METER_ENDED, __ATOMIC_RELEASE);
        }
    count_unmeasured(context_meter);
    collect(context_meter);
    context_meter->lost = true;
    settle_finished(context_meter, now);
    context_meter->reference = NULL;
    context_meter->busy.count = 0;
    context_meter->known = (struct known_busy){0};
    context_meter->waits = (struct other_waits){0};
    __atomic_store_n(&context_meter->owner, 0, __ATOMIC_RELEASE);
}

/* What others may be ending is theirs to look at afterwards. */
static void bury_ended(void) {
    uint64_t now = vcuda_now_ns();
    passes++;
    for (struct context_meter *context_meter = __atomic_load_n(&context_meters, __ATOMIC_ACQUIRE); context_meter;
         context_meter = context_meter->next)
        if (context_meter->owner && !context_end_may_be(context_meter->owner) &&
            context_id_of(context_meter->context) != context_meter->owner)
            bury(context_meter, now);
}

void settle_resume(struct context_end *end) {
    bool locked = meter_lock(true);
    context_end_is_over(end);
    if (locked) {
        bury_ended();
        meter_unlock();
    }
    __atomic_fetch_add(&meter_epoch, 1, __ATOMIC_SEQ_CST);
}

static void settle_known(struct context_meter *context_meter, uint64_t now) {
    const struct vcuda_limits_view *view = vcuda_limits();
    struct vcuda_usage *usage = vcuda_usage();
    int card = context_meter->card;
    uint64_t used =
        view && usage && (uint32_t)card < view->card_count ? span_charge_known(context_meter, view, now) : 0;
    if (!used)
        return;
    bucket_settle(&usage->card[card], &view->card[card], used, 0);
    bucket_note_window(&usage->card[card], used, now);
}

static uint64_t look(struct context_meter *context_meter, uint64_t now) {
    CUcontext popped;
    count_unmeasured(context_meter);
    collect(context_meter);
    settle_known(context_meter, now);
    bool waits = context_meter->waits.first != context_meter->waits.end;
    uint64_t later = waits || known_busy_waits(&context_meter->known) ? LOOK_MOST_NS : 0;
    if (!has_work(context_meter))
        return later;
    struct vcuda_usage *usage = vcuda_usage();
    if (usage)
        __atomic_store_n(&usage->card[context_meter->card].last_busy_ns, now, __ATOMIC_RELAXED);
    sharers_look(vcuda_limits(), context_meter->card, now);
    if (context_end_may_be(context_meter->owner))
        return LOOK_MOST_NS;
    bool pushed = real.cuCtxPushCurrent_v2(context_meter->context) == CUDA_SUCCESS;
    if (pushed)
        close_all_quiet(context_meter, now);
    collect(context_meter);
    settle_finished(context_meter, now);
    if (pushed)
        real.cuCtxPopCurrent_v2(&popped);
    return has_work(context_meter) ? next_look(context_meter, now, vcuda_limits()) : later;
}

static uint64_t oldest_launch(const struct context_meter *context_meter, uint64_t oldest) {
    for (const struct timing_span *span = context_meter->waiting; span; span = span->after)
        if (span->facts.launched_at < oldest)
            oldest = span->facts.launched_at;
    return oldest;
}

/* If the process dies, another one charges what it had in flight since then (slots.c). */
static void tell_unsettled(uint64_t since, uint64_t now) {
    struct vcuda_slot *slot = vcuda_slot();
    if (!slot)
        return;
    __atomic_store_n(&slot->unsettled_since_ns, since, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->heartbeat_ns, now, __ATOMIC_RELAXED);
}

uint64_t settle_pass(void) {
    uint64_t next = 0, now = vcuda_now_ns(), oldest = now - QUIET_NS; /* in spans that are open */
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
        oldest = oldest_launch(context_meter, oldest);
    }
    measuring_window_turn(&meter_window, now); /* by what was settled until now */
    if (next)
        tell_unsettled(oldest, now);
    if (captures)
        real.cuThreadExchangeStreamCaptureMode(&mode);
    meter_unlock();
    errno = saved;
    return next > LOOK_MOST_NS ? LOOK_MOST_NS : next;
}
