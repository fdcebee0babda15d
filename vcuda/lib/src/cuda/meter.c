#include "cuda/meter.h"

#include <errno.h>
#include <sys/mman.h>

#include "cuda/place.h"
#include "front.h"
#include "page.h"

#define STREAM_LEGACY ((CUstream)1)
#define STREAM_PER_THREAD ((CUstream)2)
#define CAPTURE_RELAXED 2
/* A launch call returns within this; what takes longer was the machine doing something else. */
#define CALL_NS 20000u

uint64_t meter_epoch;
uint32_t meter_captures;
uint64_t meter_ahead_ns[VCUDA_MAX_CARDS];
struct venue *meter_venues;
struct meter *meter_buckets[METER_BUCKETS];

static __thread char thread_token __attribute__((tls_model("initial-exec")));

/* ---- pieces
 * ---------------------------------------------------------------------------------------------------------- */

/* The list of free pieces: (changes << 16 | number + 1). */
static struct piece *take_free(struct venue *venue) {
    uint64_t head = __atomic_load_n(&venue->free_head, __ATOMIC_ACQUIRE), new;
    struct piece *piece;
    do {
        if (!(head & 0xffff))
            return NULL;
        piece = &venue->piece[(head & 0xffff) - 1];
        struct piece *next = __atomic_load_n(&piece->next, __ATOMIC_RELAXED);
        new = (head & ~UINT64_C(0xffff)) + 0x10000 + (next ? (uint64_t)(next - venue->piece) + 1 : 0);
    } while (!__atomic_compare_exchange_n(&venue->free_head, &head, new, true, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
    return piece;
}

void piece_free(struct piece *piece) {
    struct venue *venue = piece->venue;
    uint64_t head = __atomic_load_n(&venue->free_head, __ATOMIC_RELAXED), new;
    do {
        struct piece *next = head & 0xffff ? &venue->piece[(head & 0xffff) - 1] : NULL;
        __atomic_store_n(&piece->next, next, __ATOMIC_RELAXED);
        new = (head & ~UINT64_C(0xffff)) + 0x10000 + (uint64_t)(piece - venue->piece) + 1;
    } while (!__atomic_compare_exchange_n(&venue->free_head, &head, new, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
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

static bool make_events(struct piece *piece) {
    CUcontext current = NULL, popped;
    if (piece->end)
        return true;
    real.cuCtxGetCurrent(&current);
    bool elsewhere = current != piece->venue->context;
    if (elsewhere && real.cuCtxPushCurrent_v2(piece->venue->context) != CUDA_SUCCESS)
        return false;
    if (!piece->start && real.cuEventCreate(&piece->start, 0) != CUDA_SUCCESS)
        piece->start = NULL;
    if (piece->start && real.cuEventCreate(&piece->end, 0) != CUDA_SUCCESS)
        piece->end = NULL;
    if (elsewhere)
        real.cuCtxPopCurrent_v2(&popped);
    return piece->end != NULL;
}

bool meter_record(CUevent event, CUstream stream) {
    return real.cuEventRecord(event, stream) == CUDA_SUCCESS;
}

static void note_busy(struct meter *meter) {
    struct vcuda_slot *slot = vcuda_slot();
    if (__atomic_fetch_add(&meter->unsettled, 1, __ATOMIC_ACQ_REL) == 0 && slot)
        __atomic_fetch_add(&slot->inflight[meter->card], 1, __ATOMIC_RELAXED);
}

/* One piece of this stream is over; after the last one the stream is not in flight any more. */
void meter_settled(struct meter *meter) {
    struct vcuda_slot *slot = vcuda_slot();
    if (__atomic_fetch_sub(&meter->unsettled, 1, __ATOMIC_ACQ_REL) == 1 && slot &&
        __atomic_load_n(&slot->inflight[meter->card], __ATOMIC_RELAXED))
        __atomic_fetch_sub(&slot->inflight[meter->card], 1, __ATOMIC_RELAXED);
}

static struct piece *open_piece(struct meter *meter) {
    struct piece *piece = take_free(meter->venue);
    if (!piece)
        return NULL;
    int mode = relax();
    piece->venue = meter->venue;
    piece->meter = meter;
    piece->expected_ns = piece->unsure_ns = piece->late_ns = 0;
    __atomic_store_n(&piece->launches, 0, __ATOMIC_RELAXED);
    piece->kinds = 0;
    piece->was_idle = !__atomic_load_n(&meter->unsettled, __ATOMIC_RELAXED);
    bool made = make_events(piece);
    piece->opened_ns = vcuda_now_ns();
    bool recorded = made && meter_record(piece->start, meter->stream);
    restore(mode);
    if (!recorded) {
        piece_free(piece);
        return NULL;
    }
    piece->measured = true;
    note_busy(meter);
    settle_wake();
    return piece;
}

struct piece *meter_take(struct meter *meter) {
    for (int i = 0; i < METER_PLACES; i++) {
        if (!__atomic_load_n(&meter->open[i], __ATOMIC_RELAXED))
            continue;
        struct piece *piece = __atomic_exchange_n(&meter->open[i], NULL, __ATOMIC_ACQUIRE);
        if (piece)
            return piece;
    }
    int saved = errno;
    struct piece *piece = open_piece(meter);
    errno = saved;
    return piece;
}

void piece_add(struct piece *piece, struct cost *cost, uint64_t expected_ns) {
    piece->expected_ns += expected_ns;
    __atomic_store_n(&piece->launches, piece->launches + 1, __ATOMIC_RELAXED);
    uint32_t i = piece->kinds;
    while (i > 0 && piece->kind[i - 1].cost != cost)
        i--;
    if (i) {
        piece->kind[i - 1].count++;
    } else if (piece->kinds < METER_KINDS) {
        piece->kind[piece->kinds].cost = cost;
        piece->kind[piece->kinds++].count = 1;
    }
}

void piece_remove(struct piece *piece, struct cost *cost, uint64_t expected_ns) {
    piece->expected_ns -= expected_ns;
    __atomic_store_n(&piece->launches, piece->launches - 1, __ATOMIC_RELAXED);
    for (uint32_t i = 0; i < piece->kinds; i++)
        if (piece->kind[i].cost == cost)
            piece->kind[i].count--;
}

void meter_put(struct meter *meter, struct piece *piece) {
    for (int i = 0; i < METER_PLACES; i++) {
        struct piece *none = NULL;
        if (__atomic_compare_exchange_n(&meter->open[i], &none, piece, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
            return;
    }
    meter_close(piece, vcuda_now_ns());
}

/* To the one that settles. */
static void push(struct piece *piece) {
    struct venue *venue = piece->venue;
    __atomic_fetch_add(&meter_ahead_ns[venue->card], piece->expected_ns, __ATOMIC_RELAXED);
    struct piece *head = __atomic_load_n(&venue->closed, __ATOMIC_RELAXED);
    do
        __atomic_store_n(&piece->next, head, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&venue->closed, &head, piece, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
}

void meter_close(struct piece *piece, uint64_t now) {
    int mode = relax();
    if (piece->was_idle && piece->launches == 1 && now > piece->opened_ns + CALL_NS)
        piece->late_ns = now - piece->opened_ns - CALL_NS;
    piece->measured = meter_record(piece->end, piece->meter->stream);
    restore(mode);
    piece->closed_ns = vcuda_now_ns();
    piece->unsure_ns = piece->closed_ns > now + CALL_NS ? piece->closed_ns - now : 0;
    push(piece);
}

/* ---- streams and contexts
 * -------------------------------------------------------------------------------------------- */

static void *map(size_t size) {
    void *found = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return found == MAP_FAILED ? NULL : found;
}

static struct venue *find_venue(uint64_t owner) {
    struct venue *venue = __atomic_load_n(&meter_venues, __ATOMIC_ACQUIRE);
    while (venue && __atomic_load_n(&venue->owner, __ATOMIC_ACQUIRE) != owner)
        venue = venue->next;
    return venue;
}

static void fill_venue(struct venue *venue, const struct place *place, CUcontext context) {
    venue->context = context;
    venue->card = place->card;
    venue->lost = false;
    venue->waiting_end = &venue->waiting;
    venue->free_head = 0;
    for (unsigned i = 0; i < METER_PIECES; i++) {
        venue->piece[i] = (struct piece){.venue = venue};
        piece_free(&venue->piece[i]);
    }
}

static void publish_venue(struct venue *venue, uint64_t owner) {
    __atomic_store_n(&venue->owner, owner, __ATOMIC_RELEASE);
    struct venue *head = __atomic_load_n(&meter_venues, __ATOMIC_RELAXED);
    do
        venue->next = head;
    while (!__atomic_compare_exchange_n(&meter_venues, &head, venue, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
}

static struct venue *venue_of(const struct place *place, CUcontext context) {
    struct venue *venue = find_venue(place->owner);
    if (venue || !settle_lock(true))
        return venue;
    venue = find_venue(place->owner);
    struct venue *reused = venue ? NULL : find_venue(0);
    if (reused) {
        fill_venue(reused, place, context);
        __atomic_store_n(&reused->owner, place->owner, __ATOMIC_RELEASE);
        venue = reused;
    } else if (!venue && (venue = map(sizeof *venue))) {
        fill_venue(venue, place, context);
        publish_venue(venue, place->owner);
    }
    settle_unlock();
    return venue;
}

static CUstream named(CUstream stream, bool per_thread) {
    return stream ? stream : per_thread ? STREAM_PER_THREAD : STREAM_LEGACY;
}

static struct meter *find_meter(struct meter *meter, const uint64_t key[3]) {
    for (; meter; meter = meter->next)
        if (__atomic_load_n(&meter->key[0], __ATOMIC_ACQUIRE) == key[0] && meter->key[1] == key[1] &&
            meter->key[2] == key[2])
            return meter;
    return NULL;
}

/* Under the settling lock. */
static struct meter *add_meter(struct meter **bucket, const uint64_t key[3], CUstream stream, struct venue *venue) {
    struct meter *meter = __atomic_load_n(bucket, __ATOMIC_ACQUIRE);
    while (meter && (meter->key[0] || __atomic_load_n(&meter->unsettled, __ATOMIC_ACQUIRE)))
        meter = meter->next;
    bool new = !meter;
    if (new && !(meter = map(sizeof *meter)))
        return NULL;
    meter->stream = stream;
    meter->venue = venue;
    meter->card = venue->card;
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

struct meter *meter_of(CUstream stream, bool per_thread) {
    struct place place;
    stream = named(stream, per_thread);
    if (!place_of_stream(stream, &place) || place.card < 0)
        return NULL;
    uint64_t key[3] = {(uint64_t)(uintptr_t)stream, place.owner,
                       stream == STREAM_PER_THREAD ? (uint64_t)(uintptr_t)&thread_token : 0};
    uint64_t hash = (key[0] ^ key[1] << 7 ^ key[2] >> 6) * UINT64_C(0x9e3779b97f4a7c15);
    struct meter **bucket = &meter_buckets[hash >> 56];
    struct meter *meter = find_meter(__atomic_load_n(bucket, __ATOMIC_ACQUIRE), key);
    if (meter)
        return meter;
    struct venue *venue = venue_of(&place, context_of(stream));
    if (!venue || !settle_lock(true))
        return NULL;
    meter = find_meter(__atomic_load_n(bucket, __ATOMIC_ACQUIRE), key);
    if (!meter)
        meter = add_meter(bucket, key, stream, venue);
    settle_unlock();
    return meter;
}

bool meter_is_capturing(CUstream stream, bool per_thread) {
    int status = 0;
    CUresult result = real.cuStreamIsCapturing(named(stream, per_thread), &status);
    return result != CUDA_SUCCESS || status != 0; /* an error: this launch is not for us to judge */
}

/* Without a record: what has not been measured is settled as expected. */
void meter_drop_piece(struct piece *piece) {
    piece->measured = false;
    piece->closed_ns = vcuda_now_ns();
    push(piece);
}

static void flush(struct meter *meter, bool record) {
    for (int i = 0; i < METER_PLACES; i++) {
        struct piece *piece = __atomic_load_n(&meter->open[i], __ATOMIC_RELAXED)
                                  ? __atomic_exchange_n(&meter->open[i], NULL, __ATOMIC_ACQUIRE)
                                  : NULL;
        if (piece && record)
            meter_close(piece, vcuda_now_ns());
        else if (piece)
            meter_drop_piece(piece);
    }
}

static bool has_open(const struct meter *meter) {
    for (int i = 0; i < METER_PLACES; i++)
        if (__atomic_load_n(&meter->open[i], __ATOMIC_RELAXED))
            return true;
    return false;
}

void meter_flush(CUstream stream, bool per_thread) {
    int saved = errno;
    struct meter *meter = __atomic_load_n(&meter_venues, __ATOMIC_ACQUIRE) ? meter_of(stream, per_thread) : NULL;
    if (meter && has_open(meter)) {
        bool capturing = __atomic_load_n(&meter_captures, __ATOMIC_SEQ_CST) && meter_is_capturing(stream, per_thread);
        flush(meter, !capturing);
    }
    errno = saved;
}

void meter_flush_context(void) {
    struct place place;
    if (!__atomic_load_n(&meter_venues, __ATOMIC_ACQUIRE) || !place_here(&place))
        return;
    int saved = errno;
    for (int i = 0; i < METER_BUCKETS; i++)
        for (struct meter *meter = __atomic_load_n(&meter_buckets[i], __ATOMIC_ACQUIRE); meter; meter = meter->next) {
            uint64_t token = __atomic_load_n(&meter->key[2], __ATOMIC_RELAXED);
            if (meter->key[1] != place.owner || !has_open(meter) ||
                (token && token != (uint64_t)(uintptr_t)&thread_token))
                continue;
            bool capturing = __atomic_load_n(&meter_captures, __ATOMIC_SEQ_CST) != 0;
            flush(meter, !capturing || !meter_is_capturing(meter->stream, false));
        }
    errno = saved;
}

void meter_stream_ends(CUstream stream) {
    if ((uintptr_t)stream <= 2 || !__atomic_load_n(&meter_venues, __ATOMIC_ACQUIRE))
        return;
    int saved = errno;
    struct meter *meter = meter_of(stream, false);
    if (meter) {
        meter_flush(stream, false);
        bool locked = settle_lock(true);
        __atomic_store_n(&meter->key[0], 0, __ATOMIC_RELEASE);
        __atomic_fetch_add(&meter_epoch, 1, __ATOMIC_SEQ_CST);
        if (locked)
            settle_unlock();
    }
    errno = saved;
}
