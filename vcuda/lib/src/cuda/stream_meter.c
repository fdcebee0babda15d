#include "cuda/stream_meter.h"

#include <errno.h>
#include <sys/mman.h>

#include "cuda/device_map.h"
#include "interposer.h"
#include "page.h"

#define STREAM_LEGACY ((CUstream)1)
#define STREAM_PER_THREAD ((CUstream)2)
#define CAPTURE_RELAXED 2
/* A launch call returns within this; what takes longer was the machine doing something else. */
#define CALL_NS 20000u

uint64_t meter_epoch;
uint32_t meter_captures;
uint64_t meter_ahead_ns[VCUDA_MAX_CARDS];
struct context_meter *context_meters;
struct stream_meter *stream_meters[STREAM_METER_LISTS];

static __thread char thread_token __attribute__((tls_model("initial-exec")));

/* ---- spans
 * ---------------------------------------------------------------------------------------------------------- */

/* The list of free spans: (changes << 16 | number + 1). */
static struct timing_span *take_free(struct context_meter *context_meter) {
    uint64_t head = __atomic_load_n(&context_meter->free_head, __ATOMIC_ACQUIRE), new;
    struct timing_span *span;
    do {
        if (!(head & 0xffff))
            return NULL;
        span = &context_meter->span[(head & 0xffff) - 1];
        struct timing_span *next = __atomic_load_n(&span->next, __ATOMIC_RELAXED);
        new = (head & ~UINT64_C(0xffff)) + 0x10000 + (next ? (uint64_t)(next - context_meter->span) + 1 : 0);
    } while (
        !__atomic_compare_exchange_n(&context_meter->free_head, &head, new, true, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
    return span;
}

void timing_span_free(struct timing_span *span) {
    struct context_meter *context_meter = span->context_meter;
    uint64_t head = __atomic_load_n(&context_meter->free_head, __ATOMIC_RELAXED), new;
    do {
        struct timing_span *next = head & 0xffff ? &context_meter->span[(head & 0xffff) - 1] : NULL;
        __atomic_store_n(&span->next, next, __ATOMIC_RELAXED);
        new = (head & ~UINT64_C(0xffff)) + 0x10000 + (uint64_t)(span - context_meter->span) + 1;
    } while (
        !__atomic_compare_exchange_n(&context_meter->free_head, &head, new, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
}

/* While some stream is captured, a call of ours must not count as one of the capture's: the thread's mode is relaxed
 * for its length. */
static int relax(void) {
    int mode = CAPTURE_RELAXED;
    if (!__atomic_load_n(&meter_captures, __ATOMIC_SEQ_CST) ||
        real.cuThreadExchangeStreamCaptureMode(&mode) != CUDA_SUCCESS)
        return -1;
    return mode;
}

static void restore(int mode) {
    if (mode >= 0)
        real.cuThreadExchangeStreamCaptureMode(&mode);
}

static bool make_events(struct timing_span *span) {
    CUcontext current = NULL, popped;
    if (span->end)
        return true;
    real.cuCtxGetCurrent(&current);
    bool elsewhere = current != span->context_meter->context;
    if (elsewhere && real.cuCtxPushCurrent_v2(span->context_meter->context) != CUDA_SUCCESS)
        return false;
    if (!span->start && real.cuEventCreate(&span->start, 0) != CUDA_SUCCESS)
        span->start = NULL;
    if (span->start && real.cuEventCreate(&span->end, 0) != CUDA_SUCCESS)
        span->end = NULL;
    if (elsewhere)
        real.cuCtxPopCurrent_v2(&popped);
    return span->end != NULL;
}

bool timing_span_record(CUevent event, CUstream stream) {
    return real.cuEventRecord(event, stream) == CUDA_SUCCESS;
}

static void note_busy(struct stream_meter *meter) {
    struct vcuda_slot *slot = vcuda_slot();
    if (__atomic_fetch_add(&meter->unsettled, 1, __ATOMIC_ACQ_REL) == 0 && slot)
        __atomic_fetch_add(&slot->inflight[meter->card], 1, __ATOMIC_RELAXED);
}

/* One span of this stream is over; after the last one the stream is not in flight any more. */
void stream_meter_settled(struct stream_meter *meter) {
    struct vcuda_slot *slot = vcuda_slot();
    if (__atomic_fetch_sub(&meter->unsettled, 1, __ATOMIC_ACQ_REL) == 1 && slot &&
        __atomic_load_n(&slot->inflight[meter->card], __ATOMIC_RELAXED))
        __atomic_fetch_sub(&slot->inflight[meter->card], 1, __ATOMIC_RELAXED);
}

static struct timing_span *open_span(struct stream_meter *meter) {
    struct timing_span *span = take_free(meter->context_meter);
    if (!span)
        return NULL;
    int mode = relax();
    span->context_meter = meter->context_meter;
    span->meter = meter;
    span->expected_ns = span->unsure_ns = span->late_ns = 0;
    __atomic_store_n(&span->launches, 0, __ATOMIC_RELAXED);
    span->kinds = 0;
    span->was_idle = !__atomic_load_n(&meter->unsettled, __ATOMIC_RELAXED);
    bool made = make_events(span);
    span->opened_ns = vcuda_now_ns();
    bool recorded = made && timing_span_record(span->start, meter->stream);
    restore(mode);
    if (!recorded) {
        timing_span_free(span);
        return NULL;
    }
    span->measured = true;
    note_busy(meter);
    settle_wake();
    return span;
}

struct timing_span *timing_span_take(struct stream_meter *meter) {
    for (int i = 0; i < TIMING_SPANS_OPEN; i++) {
        if (!__atomic_load_n(&meter->open[i], __ATOMIC_RELAXED))
            continue;
        struct timing_span *span = __atomic_exchange_n(&meter->open[i], NULL, __ATOMIC_ACQUIRE);
        if (span)
            return span;
    }
    int saved = errno;
    struct timing_span *span = open_span(meter);
    errno = saved;
    return span;
}

void timing_span_add(struct timing_span *span, struct cost *cost, uint64_t expected_ns) {
    span->expected_ns += expected_ns;
    __atomic_store_n(&span->launches, span->launches + 1, __ATOMIC_RELAXED);
    uint32_t i = span->kinds;
    while (i > 0 && span->kind[i - 1].cost != cost)
        i--;
    if (i) {
        span->kind[i - 1].count++;
    } else if (span->kinds < TIMING_SPAN_KINDS) {
        span->kind[span->kinds].cost = cost;
        span->kind[span->kinds++].count = 1;
    }
}

void timing_span_remove(struct timing_span *span, struct cost *cost, uint64_t expected_ns) {
    span->expected_ns -= expected_ns;
    __atomic_store_n(&span->launches, span->launches - 1, __ATOMIC_RELAXED);
    for (uint32_t i = 0; i < span->kinds; i++)
        if (span->kind[i].cost == cost)
            span->kind[i].count--;
}

void timing_span_put(struct stream_meter *meter, struct timing_span *span) {
    for (int i = 0; i < TIMING_SPANS_OPEN; i++) {
        struct timing_span *none = NULL;
        if (__atomic_compare_exchange_n(&meter->open[i], &none, span, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
            return;
    }
    timing_span_close(span, vcuda_now_ns());
}

/* To the one that settles. */
static void push(struct timing_span *span) {
    struct context_meter *context_meter = span->context_meter;
    __atomic_fetch_add(&meter_ahead_ns[context_meter->card], span->expected_ns, __ATOMIC_RELAXED);
    struct timing_span *head = __atomic_load_n(&context_meter->closed, __ATOMIC_RELAXED);
    do
        __atomic_store_n(&span->next, head, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&context_meter->closed, &head, span, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
}

void timing_span_close(struct timing_span *span, uint64_t now) {
    int mode = relax();
    if (span->was_idle && span->launches == 1 && now > span->opened_ns + CALL_NS)
        span->late_ns = now - span->opened_ns - CALL_NS;
    span->measured = timing_span_record(span->end, span->meter->stream);
    restore(mode);
    span->closed_ns = vcuda_now_ns();
    span->unsure_ns = span->closed_ns > now + CALL_NS ? span->closed_ns - now : 0;
    push(span);
}

/* ---- streams and contexts
 * -------------------------------------------------------------------------------------------- */

static void *map(size_t size) {
    void *found = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return found == MAP_FAILED ? NULL : found;
}

static struct context_meter *find_context_meter(uint64_t owner) {
    struct context_meter *context_meter = __atomic_load_n(&context_meters, __ATOMIC_ACQUIRE);
    while (context_meter && __atomic_load_n(&context_meter->owner, __ATOMIC_ACQUIRE) != owner)
        context_meter = context_meter->next;
    return context_meter;
}

static void fill_context_meter(struct context_meter *context_meter, const struct mapped_context *where,
                               CUcontext context) {
    context_meter->context = context;
    context_meter->card = where->card;
    context_meter->lost = false;
    context_meter->waiting_end = &context_meter->waiting;
    context_meter->free_head = 0;
    for (unsigned i = 0; i < TIMING_SPANS; i++) {
        context_meter->span[i] = (struct timing_span){.context_meter = context_meter};
        timing_span_free(&context_meter->span[i]);
    }
}

static void publish_context_meter(struct context_meter *context_meter, uint64_t owner) {
    __atomic_store_n(&context_meter->owner, owner, __ATOMIC_RELEASE);
    struct context_meter *head = __atomic_load_n(&context_meters, __ATOMIC_RELAXED);
    do
        context_meter->next = head;
    while (
        !__atomic_compare_exchange_n(&context_meters, &head, context_meter, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
}

static struct context_meter *context_meter_of(const struct mapped_context *where, CUcontext context) {
    struct context_meter *context_meter = find_context_meter(where->owner);
    if (context_meter || !settle_lock(true))
        return context_meter;
    context_meter = find_context_meter(where->owner);
    struct context_meter *reused = context_meter ? NULL : find_context_meter(0);
    if (reused) {
        fill_context_meter(reused, where, context);
        __atomic_store_n(&reused->owner, where->owner, __ATOMIC_RELEASE);
        context_meter = reused;
    } else if (!context_meter && (context_meter = map(sizeof *context_meter))) {
        fill_context_meter(context_meter, where, context);
        publish_context_meter(context_meter, where->owner);
    }
    settle_unlock();
    return context_meter;
}

static CUstream named(CUstream stream, bool per_thread) {
    return stream ? stream : per_thread ? STREAM_PER_THREAD : STREAM_LEGACY;
}

static struct stream_meter *find_stream_meter(struct stream_meter *meter, const uint64_t key[3]) {
    for (; meter; meter = meter->next)
        if (__atomic_load_n(&meter->key[0], __ATOMIC_ACQUIRE) == key[0] && meter->key[1] == key[1] &&
            meter->key[2] == key[2])
            return meter;
    return NULL;
}

/* Under the settling lock. */
static struct stream_meter *add_stream_meter(struct stream_meter **bucket, const uint64_t key[3], CUstream stream,
                                             struct context_meter *context_meter) {
    struct stream_meter *meter = __atomic_load_n(bucket, __ATOMIC_ACQUIRE);
    while (meter && (meter->key[0] || __atomic_load_n(&meter->unsettled, __ATOMIC_ACQUIRE)))
        meter = meter->next;
    bool new = !meter;
    if (new && !(meter = map(sizeof *meter)))
        return NULL;
    meter->stream = stream;
    meter->context_meter = context_meter;
    meter->card = context_meter->card;
    meter->others_may_record = stream != STREAM_PER_THREAD;
    meter->key[1] = key[1];
    meter->key[2] = key[2];
    __atomic_store_n(&meter->key[0], key[0], __ATOMIC_RELEASE);
    if (new) {
        meter->next = *bucket;
        __atomic_store_n(bucket, meter, __ATOMIC_RELEASE);
    }
    return meter;
}

static CUcontext context_of(CUstream stream) {
    CUcontext context = NULL;
    if ((uintptr_t)stream > 2 && real.cuStreamGetCtx(stream, &context) == CUDA_SUCCESS && context)
        return context;
    return real.cuCtxGetCurrent(&context) == CUDA_SUCCESS ? context : NULL;
}

struct stream_meter *stream_meter_of(CUstream stream, bool per_thread) {
    struct mapped_context where;
    stream = named(stream, per_thread);
    if (!device_map_of_stream(stream, &where) || where.card < 0)
        return NULL;
    uint64_t key[3] = {(uint64_t)(uintptr_t)stream, where.owner,
                       stream == STREAM_PER_THREAD ? (uint64_t)(uintptr_t)&thread_token : 0};
    uint64_t hash = (key[0] ^ key[1] << 7 ^ key[2] >> 6) * UINT64_C(0x9e3779b97f4a7c15);
    struct stream_meter **bucket = &stream_meters[hash >> 56];
    struct stream_meter *meter = find_stream_meter(__atomic_load_n(bucket, __ATOMIC_ACQUIRE), key);
    if (meter)
        return meter;
    struct context_meter *context_meter = context_meter_of(&where, context_of(stream));
    if (!context_meter || !settle_lock(true))
        return NULL;
    meter = find_stream_meter(__atomic_load_n(bucket, __ATOMIC_ACQUIRE), key);
    if (!meter)
        meter = add_stream_meter(bucket, key, stream, context_meter);
    settle_unlock();
    return meter;
}

bool stream_is_capturing(CUstream stream, bool per_thread) {
    int status = 0;
    CUresult result = real.cuStreamIsCapturing(named(stream, per_thread), &status);
    return result != CUDA_SUCCESS || status != 0; /* an error: this launch is not for us to judge */
}

/* Without a record: what has not been measured is settled as expected. */
void timing_span_drop(struct timing_span *span) {
    span->measured = false;
    span->closed_ns = vcuda_now_ns();
    push(span);
}

static void flush(struct stream_meter *meter, bool record) {
    for (int i = 0; i < TIMING_SPANS_OPEN; i++) {
        struct timing_span *span = __atomic_load_n(&meter->open[i], __ATOMIC_RELAXED)
                                       ? __atomic_exchange_n(&meter->open[i], NULL, __ATOMIC_ACQUIRE)
                                       : NULL;
        if (span && record)
            timing_span_close(span, vcuda_now_ns());
        else if (span)
            timing_span_drop(span);
    }
}

static bool has_open(const struct stream_meter *meter) {
    for (int i = 0; i < TIMING_SPANS_OPEN; i++)
        if (__atomic_load_n(&meter->open[i], __ATOMIC_RELAXED))
            return true;
    return false;
}

void stream_meter_flush(CUstream stream, bool per_thread) {
    int saved = errno;
    struct stream_meter *meter =
        __atomic_load_n(&context_meters, __ATOMIC_ACQUIRE) ? stream_meter_of(stream, per_thread) : NULL;
    if (meter && has_open(meter)) {
        bool capturing = __atomic_load_n(&meter_captures, __ATOMIC_SEQ_CST) && stream_is_capturing(stream, per_thread);
        flush(meter, !capturing);
    }
    errno = saved;
}

void stream_meter_flush_context(void) {
    struct mapped_context where;
    if (!__atomic_load_n(&context_meters, __ATOMIC_ACQUIRE) || !device_map_current(&where))
        return;
    int saved = errno;
    for (int i = 0; i < STREAM_METER_LISTS; i++)
        for (struct stream_meter *meter = __atomic_load_n(&stream_meters[i], __ATOMIC_ACQUIRE); meter;
             meter = meter->next) {
            uint64_t token = __atomic_load_n(&meter->key[2], __ATOMIC_RELAXED);
            if (meter->key[1] != where.owner || !has_open(meter) ||
                (token && token != (uint64_t)(uintptr_t)&thread_token))
                continue;
            bool capturing = __atomic_load_n(&meter_captures, __ATOMIC_SEQ_CST) != 0;
            flush(meter, !capturing || !stream_is_capturing(meter->stream, false));
        }
    errno = saved;
}

void stream_meter_ends(CUstream stream) {
    if ((uintptr_t)stream <= 2 || !__atomic_load_n(&context_meters, __ATOMIC_ACQUIRE))
        return;
    int saved = errno;
    struct stream_meter *meter = stream_meter_of(stream, false);
    if (meter) {
        stream_meter_flush(stream, false);
        bool locked = settle_lock(true);
        __atomic_store_n(&meter->key[0], 0, __ATOMIC_RELEASE);
        __atomic_fetch_add(&meter_epoch, 1, __ATOMIC_SEQ_CST);
        if (locked)
            settle_unlock();
    }
    errno = saved;
}
