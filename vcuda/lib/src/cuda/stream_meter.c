#include "cuda/stream_meter.h"
#include "cuda/context_meter.h"
#include "fork.h"
#include "interposer.h"

#include <errno.h>
#include <string.h>

#define STREAM_LEGACY ((CUstream)1)
#define STREAM_PER_THREAD ((CUstream)2)
#define STREAM_METERS_MAPPED 128 /* at a time */

uint64_t meter_epoch;
uint64_t streams_ended;
struct stream_meter *meter_closing;
struct stream_meter *stream_meters[STREAM_METER_LISTS];

static __thread char thread_token __attribute__((tls_model("initial-exec")));

/* In the child of a fork nothing of the parent's can be used. */
static void forget_in_child(void) {
    context_meters_forget();
    meter_captures = 0;
    meter_epoch++;
    memset(stream_meters, 0, sizeof stream_meters);
    memset(meter_ahead_ns, 0, VCUDA_MAX_CARDS * sizeof *meter_ahead_ns);
}

static CUstream named(CUstream stream, bool per_thread) {
    return stream ? stream : per_thread ? STREAM_PER_THREAD : STREAM_LEGACY;
}

static bool is_of(const struct stream_meter *meter, const uint64_t key[3]) {
    return __atomic_load_n(&meter->key[0], __ATOMIC_ACQUIRE) == key[0] && meter->key[1] == key[1] &&
           meter->key[2] == key[2];
}

static struct stream_meter *find_stream_meter(struct stream_meter *meter, const uint64_t key[3]) {
    while (meter && !is_of(meter, key))
        meter = meter->next;
    return meter;
}

static enum meter_use use_of(const struct stream_meter *meter) {
    return __atomic_load_n(&meter->use, __ATOMIC_ACQUIRE);
}

/* An ended one, for the same stream or for another; false if somebody else was quicker. */
static bool use_again(struct stream_meter *meter, enum meter_use use) {
    uint32_t ended = METER_ENDED;
    return __atomic_compare_exchange_n(&meter->use, &ended, use, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

/* Many to a mapping: hundreds that each began a page of their own would contend for the same few lines of a cache.
 * Under the settling lock. */
static struct stream_meter *new_stream_meter(void) {
    static struct stream_meter *next, *end;
    if (next == end) {
        if (!(next = meter_map(STREAM_METERS_MAPPED * sizeof *next)))
            return end = NULL;
        end = next + STREAM_METERS_MAPPED;
    }
    return next++;
}

/* Under the settling lock. */
static struct stream_meter *add_stream_meter(struct stream_meter **bucket, const uint64_t key[3], CUstream stream,
                                             struct context_meter *context_meter) {
    struct stream_meter *meter = __atomic_load_n(bucket, __ATOMIC_ACQUIRE);
    while (meter && (use_of(meter) != METER_ENDED || __atomic_load_n(&meter->unsettled, __ATOMIC_ACQUIRE) ||
                     !use_again(meter, METER_TAKEN)))
        meter = meter->next;
    bool new = !meter;
    if (new && !(meter = new_stream_meter()))
        return NULL;
    __atomic_store_n(&meter->key[0], 0, __ATOMIC_RELEASE); /* no other is found by half of a key */
    meter->stream = stream;
    meter->context_meter = context_meter;
    meter->card = context_meter->card;
    meter->others_may_record = stream != STREAM_PER_THREAD;
    meter->clock = (struct stream_clock){0};
    meter->settled_to = 0;
    meter->lost_count = false;
    meter->busy_to = meter->turns_ns = 0;
    __atomic_store_n(&meter->behind, BEHIND_OTHER, __ATOMIC_RELAXED);
    __atomic_store_n(&meter->seen_epoch, UINT64_MAX, __ATOMIC_RELAXED);
    meter->key[1] = key[1];
    meter->key[2] = key[2];
    __atomic_store_n(&meter->key[0], key[0], __ATOMIC_RELEASE);
    __atomic_store_n(&meter->use, METER_LIVES, __ATOMIC_RELEASE);
    if (new) {
        meter->next = *bucket;
        __atomic_store_n(bucket, meter, __ATOMIC_RELEASE);
    }
    return meter;
}

/* All but the default streams are named alike by all threads. */
static bool is_handle(CUstream stream) {
    return (uintptr_t)stream > 2;
}

static CUcontext context_of(CUstream stream) {
    CUcontext context = NULL;
    if (is_handle(stream) && real.cuStreamGetCtx(stream, &context) == CUDA_SUCCESS && context)
        return context;
    return real.cuCtxGetCurrent(&context) == CUDA_SUCCESS ? context : NULL;
}

static struct stream_meter **bucket_of(uint64_t key) {
    return &stream_meters[key * UINT64_C(0x9e3779b97f4a7c15) >> 56];
}

/* How a stream is known: by whom, and in which list. */
struct identity {
    CUstream stream;
    struct current_context where;
    uint64_t key[3];
    struct stream_meter **bucket;
};

static bool identify(struct identity *identity, CUstream stream, bool per_thread) {
    stream = named(stream, per_thread);
    if (!context_of_stream(stream, &identity->where) || identity->where.card < 0)
        return false;
    uint64_t *key = identity->key;
    identity->stream = stream;
    key[0] = (uint64_t)(uintptr_t)stream;
    key[1] = identity->where.owner;
    key[2] = stream == STREAM_PER_THREAD ? (uint64_t)(uintptr_t)&thread_token : 0;
    identity->bucket = bucket_of(is_handle(stream) ? key[0] : key[0] ^ key[1] << 7 ^ key[2] >> 6);
    return true;
}

static bool was_seen(const struct stream_meter *meter, CUstream stream, uint64_t epoch) {
    return __atomic_load_n(&meter->key[0], __ATOMIC_ACQUIRE) == (uint64_t)(uintptr_t)stream &&
           __atomic_load_n(&meter->seen_epoch, __ATOMIC_ACQUIRE) == epoch;
}

/* The meter of a handle that was asked for its context in this epoch, of a stream that lives or else of one that ended:
 * no call of the driver. */
static struct stream_meter *seen_in(CUstream stream, uint64_t epoch) {
    struct stream_meter *meter = NULL, *ended = NULL;
    if (is_handle(stream))
        meter = __atomic_load_n(bucket_of((uint64_t)(uintptr_t)stream), __ATOMIC_ACQUIRE);
    for (; meter; meter = meter->next) {
        if (!was_seen(meter, stream, epoch))
            continue;
        if (use_of(meter) == METER_LIVES)
            return meter;
        ended = ended ? ended : meter;
    }
    return ended;
}

static struct stream_meter *seen(CUstream stream) {
    struct stream_meter *meter = seen_in(stream, __atomic_load_n(&meter_epoch, __ATOMIC_SEQ_CST));
    return meter && use_of(meter) == METER_LIVES ? meter : NULL;
}

/* An ended stream's, for a new one of its handle and context. While no context ends, a context is told by its handle.
 */
static struct stream_meter *seen_again(struct stream_meter *meter, CUstream stream, uint64_t epoch) {
    CUcontext context = NULL;
    if (real.cuStreamGetCtx(stream, &context) != CUDA_SUCCESS || context != meter->context_meter->context ||
        !use_again(meter, METER_LIVES))
        return NULL;
    if (was_seen(meter, stream, epoch))
        return meter;
    __atomic_store_n(&meter->use, METER_ENDED, __ATOMIC_RELEASE); /* it had become another's, which ended too */
    return NULL;
}

/* The meter if there is one: what has launched nothing has none. */
static struct stream_meter *known(const struct identity *identity) {
    return find_stream_meter(__atomic_load_n(identity->bucket, __ATOMIC_ACQUIRE), identity->key);
}

/* The same of a stream that lives: a handle that is used again goes on where the stream before it ended. */
static struct stream_meter *living(const struct identity *identity) {
    struct stream_meter *meter = known(identity);
    bool again = meter && use_of(meter) == METER_ENDED && use_again(meter, METER_LIVES);
    if (!meter || (use_of(meter) == METER_LIVES && is_of(meter, identity->key)))
        return meter;
    if (again) /* it had become another's, which ended too */
        __atomic_store_n(&meter->use, METER_ENDED, __ATOMIC_RELEASE);
    return NULL;
}

static struct stream_meter *identified(const struct identity *identity) {
    struct stream_meter *meter = living(identity);
    if (meter)
        return meter;
    fork_forgets(forget_in_child);
    struct context_meter *context_meter = context_meter_of(&identity->where, context_of(identity->stream));
    if (!context_meter || !meter_lock(true))
        return NULL;
    if (!(meter = living(identity)))
        meter = add_stream_meter(identity->bucket, identity->key, identity->stream, context_meter);
    meter_unlock();
    return meter;
}

struct stream_meter *stream_meter_of(CUstream stream, bool per_thread) {
    struct identity identity;
    uint64_t epoch = __atomic_load_n(&meter_epoch, __ATOMIC_SEQ_CST);
    struct stream_meter *meter = seen_in(stream, epoch);
    if (meter && use_of(meter) != METER_LIVES)
        meter = seen_again(meter, stream, epoch);
    if (meter)
        return meter;
    if (identify(&identity, stream, per_thread) && (meter = identified(&identity)))
        __atomic_store_n(&meter->seen_epoch, epoch, __ATOMIC_RELEASE);
    return meter;
}

bool stream_is_capturing(CUstream stream, bool per_thread) {
    int status = 0;
    CUresult result = real.cuStreamIsCapturing(named(stream, per_thread), &status);
    return result != CUDA_SUCCESS || status != 0; /* an error: this launch is not for us to judge */
}

static void flush(struct stream_meter *meter, bool record) {
    for (int i = 0; i < TIMING_SPANS_OPEN; i++) {
        struct timing_span *span = timing_span_hold(&meter->open[i]);
        if (span && record)
            timing_span_flush(span);
        else if (span)
            timing_span_drop(span);
    }
}

static bool has_open(const struct stream_meter *meter) {
    for (int i = 0; i < TIMING_SPANS_OPEN; i++) {
        const struct timing_span *span = __atomic_load_n(&meter->open[i], __ATOMIC_ACQUIRE);
        if (span && span != TIMING_SPAN_HELD)
            return true;
    }
    return false;
}

static struct stream_meter *find_known(CUstream stream, bool per_thread) {
    struct identity identity;
    struct stream_meter *meter = seen(stream);
    if (!meter && __atomic_load_n(&context_meters, __ATOMIC_ACQUIRE) && identify(&identity, stream, per_thread))
        meter = known(&identity);
    return meter;
}

static bool is_captured(CUstream stream, bool per_thread) {
    return __atomic_load_n(&meter_captures, __ATOMIC_SEQ_CST) && stream_is_capturing(stream, per_thread);
}

static struct stream_meter *flushed(CUstream stream, bool per_thread) {
    struct stream_meter *meter = find_known(stream, per_thread);
    if (meter && has_open(meter))
        flush(meter, !is_captured(stream, per_thread));
    return meter;
}

void stream_meter_flush(CUstream stream, bool per_thread) {
    int saved = errno;
    flushed(stream, per_thread);
    errno = saved;
}

void stream_meter_passes(CUstream stream, bool per_thread) {
    int saved = errno;
    struct stream_meter *meter = flushed(stream, per_thread);
    if (meter)
        __atomic_store_n(&meter->behind, BEHIND_OTHER, __ATOMIC_RELAXED);
    errno = saved;
}

void stream_meter_waits(CUstream stream, bool per_thread, bool for_event) {
    int saved = errno;
    struct stream_meter *meter = flushed(stream, per_thread);
    if (meter) {
        __atomic_store_n(&meter->clock.waits, true, __ATOMIC_RELAXED);
        __atomic_store_n(&meter->behind, for_event ? BEHIND_EVENT : BEHIND_OTHER, __ATOMIC_RELAXED);
    }
    errno = saved;
}

static void flush_context(uint64_t owner, bool waits) {
    int saved = errno;
    for (int i = 0; i < STREAM_METER_LISTS; i++)
        for (struct stream_meter *meter = __atomic_load_n(&stream_meters[i], __ATOMIC_ACQUIRE); meter;
             meter = meter->next) {
            uint64_t token = __atomic_load_n(&meter->key[2], __ATOMIC_RELAXED);
            if (meter->key[1] != owner || use_of(meter) != METER_LIVES)
                continue;
            if (waits) {
                __atomic_store_n(&meter->clock.waits, true, __ATOMIC_RELAXED);
                __atomic_store_n(&meter->behind, BEHIND_OTHER, __ATOMIC_RELAXED);
            }
            if (!has_open(meter) || (token && token != (uint64_t)(uintptr_t)&thread_token))
                continue;
            bool capturing = __atomic_load_n(&meter_captures, __ATOMIC_SEQ_CST) != 0;
            flush(meter, !capturing || !stream_is_capturing(meter->stream, false));
        }
    errno = saved;
}

void stream_meter_flush_context(void) {
    struct current_context where;
    if (__atomic_load_n(&context_meters, __ATOMIC_ACQUIRE) && context_current(&where))
        flush_context(where.owner, false);
}

void stream_meters_wait(CUcontext context) {
    if (context && __atomic_load_n(&context_meters, __ATOMIC_ACQUIRE))
        flush_context(context_id_of(context), true);
}

/* Its handle is the driver's to destroy from here on: nobody else records on it. A span whose end needs no record stays
 * open: a new stream of the same handle goes on with it, or it is closed when it has been quiet. */
void stream_meter_ends(CUstream stream) {
    int saved = errno;
    struct stream_meter *meter = is_handle(stream) ? find_known(stream, false) : NULL;
    if (meter && meter_is_classed(meter->card)) /* the last records on this stream */
        flush(meter, !is_captured(stream, false));
    if (meter && __atomic_load_n(&meter->key[0], __ATOMIC_ACQUIRE) == (uint64_t)(uintptr_t)stream)
        __atomic_store_n(&meter->use, METER_ENDED, __ATOMIC_SEQ_CST);
    if (meter)
        __atomic_store_n(&meter->behind, BEHIND_OTHER, __ATOMIC_RELAXED);
    if (meter && __atomic_load_n(&meter_closing, __ATOMIC_SEQ_CST) == meter && meter_lock(true))
        meter_unlock();
    __atomic_fetch_add(&streams_ended, 1, __ATOMIC_SEQ_CST);
    errno = saved;
}
