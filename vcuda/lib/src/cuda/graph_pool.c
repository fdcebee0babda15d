/* What the work of graphs can hold at once is graph_backlog.h's; whoever is refused because of it first waits until
 * work has ended. The driver may bind a graph's pages at any time from its launch to its end, so what is charged does
 * not fall to the driver's own figure before the work is known to have ended.
 */
#include "cuda/graph_pool.h"

#include <stdlib.h>

#include "cuda/account.h"
#include "cuda/context_id.h"
#include "cuda/stream_end.h"
#include "fork.h"
#include "interposer.h"
#include "lock.h"

/* No process sees more. */
#define DEVICES 64

struct graph_pool {
    bool busy, is_open;
    CUdevice device;
    int card;
    uint64_t charged;
    uint32_t epoch, changes; /* changes: launches put here; a reading of the driver's figure is void after one */
    struct graph_backlog backlog;
};

static struct graph_pool pools[DEVICES];
static bool any_open;

/* Nothing that a parent has on a card is its child's. Records of the parent are lost: a few hundred bytes. */
static void forget_in_child(void) {
    for (int i = 0; i < DEVICES; i++)
        pools[i] = (struct graph_pool){0};
    any_open = false;
}

struct graph_pool *graph_pool_of(CUdevice device, int card) {
    if (device < 0 || device >= DEVICES)
        return NULL;
    struct graph_pool *pool = &pools[device];
    if (__atomic_load_n(&pool->is_open, __ATOMIC_ACQUIRE))
        return pool;
    fork_forgets(forget_in_child);
    spin_lock(&pool->busy);
    pool->device = device;
    pool->card = card;
    __atomic_store_n(&pool->is_open, true, __ATOMIC_RELEASE);
    spin_unlock(&pool->busy);
    __atomic_store_n(&any_open, true, __ATOMIC_RELEASE);
    return pool;
}

CUdevice graph_pool_device(const struct graph_pool *pool) {
    return pool->device;
}

uint32_t graph_pool_epoch(const struct graph_pool *pool) {
    return __atomic_load_n(&pool->epoch, __ATOMIC_ACQUIRE);
}

bool graph_pools_exist(void) {
    return __atomic_load_n(&any_open, __ATOMIC_ACQUIRE);
}

/* The open pool behind this one; NULL: the first. */
static struct graph_pool *next_open(struct graph_pool *pool) {
    for (pool = pool ? pool + 1 : pools; graph_pools_exist() && pool < pools + DEVICES; pool++)
        if (__atomic_load_n(&pool->is_open, __ATOMIC_ACQUIRE))
            return pool;
    return NULL;
}

#define EACH_POOL(pool) for (struct graph_pool *pool = next_open(NULL); pool; pool = next_open(pool))

/* ---- launches ---------------------------------------------------------------------------------------------------- */

bool graph_pool_enter(struct graph_pool *pool, struct graph_stream stream, const struct graph_step *step,
                      uint64_t *missing) {
    struct graph_record *spare = calloc(1, sizeof *spare);
    spin_lock(&pool->busy);
    struct graph_record *record = graph_backlog_find_or_use(&pool->backlog, &stream, &spare);
    bool fits = graph_backlog_enter(&pool->backlog, record, step, pool->charged, missing);
    pool->changes += fits;
    spin_unlock(&pool->busy);
    free(spare);
    return fits;
}

void graph_pool_add(struct graph_pool *pool, uint64_t bytes) {
    spin_lock(&pool->busy);
    pool->charged += bytes;
    spin_unlock(&pool->busy);
}

/* The greatest sum stays: it is an upper bound, and goes with the next synchronisation. */
void graph_pool_withdraw(struct graph_pool *pool, struct graph_stream stream, const struct graph_step *step) {
    int64_t back = (int64_t)step->freed_before - step->change;
    spin_lock(&pool->busy);
    struct graph_record *record = graph_backlog_find(&pool->backlog, &stream);
    *(record ? &record->now : &pool->backlog.done) += back;
    spin_unlock(&pool->busy);
}

void graph_pool_freed(struct graph_pool *pool, uint64_t bytes, uint32_t epoch) {
    spin_lock(&pool->busy);
    if (pool->epoch == epoch)
        pool->backlog.done -= (int64_t)bytes;
    spin_unlock(&pool->busy);
}

void graph_pool_freed_behind(struct graph_pool *pool, struct graph_stream stream, uint64_t bytes, uint32_t epoch) {
    struct graph_record *spare = calloc(1, sizeof *spare);
    spin_lock(&pool->busy);
    struct graph_record *record =
        pool->epoch == epoch ? graph_backlog_find_or_use(&pool->backlog, &stream, &spare) : NULL;
    if (record)
        record->now -= (int64_t)bytes;
    spin_unlock(&pool->busy);
    free(spare);
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */

bool graph_pools_synchronised(struct graph_stream stream) {
    bool any = false;
    EACH_POOL(pool) {
        spin_lock(&pool->busy);
        struct graph_record *record = graph_backlog_find(&pool->backlog, &stream);
        if (record)
            graph_backlog_finish(&pool->backlog, record);
        any |= record != NULL;
        spin_unlock(&pool->busy);
    }
    return any;
}

/* With the pool's lock taken. The event, if there is one, is the caller's to end. */
static CUevent finish(struct graph_pool *pool, struct graph_record *record) {
    CUevent end = record->end;
    record->end = NULL;
    graph_backlog_finish(&pool->backlog, record);
    return end;
}

bool graph_pools_synchronised_context(uint64_t context) {
    bool any = false;
    EACH_POOL(pool) {
        for (struct graph_record *record = pool->backlog.records; record; record = record->next) {
            spin_lock(&pool->busy);
            bool is_its = record->is_used && record->key.context == context;
            CUevent end = is_its ? finish(pool, record) : NULL;
            spin_unlock(&pool->busy);
            stream_end_forget(end);
            any |= is_its;
        }
    }
    return any;
}

void graph_pools_context_gone(uint64_t context) {
    EACH_POOL(pool) {
        spin_lock(&pool->busy);
        for (struct graph_record *record = pool->backlog.records; record; record = record->next)
            if (record->is_used && record->key.context == context)
                finish(pool, record); /* its event has ended with the context */
        spin_unlock(&pool->busy);
    }
}

void graph_pools_hold(void) {
    stream_end_hold();
}

void graph_pools_release(void) {
    stream_end_release();
}

/* Can this thread ask about the stream? Not about another thread's own, nor one that is gone, nor the null stream of a
 * context that is not current. */
static bool can_ask(const struct graph_record *record, uint64_t context) {
    const struct graph_stream *key = &record->key;
    return record->is_used && !record->is_gone && !graph_stream_is_another_threads(key) &&
           ((uintptr_t)key->stream > 2 || key->context == context);
}

void graph_pools_stream_ends(CUstream stream) {
    bool any = false;
    EACH_POOL(pool) {
        for (struct graph_record *record = pool->backlog.records; record; record = record->next) {
            spin_lock(&pool->busy);
            struct graph_stream key = record->key;
            bool is_its = record->is_used && !record->is_gone && key.stream == stream && (uintptr_t)stream > 2;
            spin_unlock(&pool->busy);
            if (!is_its)
                continue;
            bool ended = stream_end_is_reached(&key);
            CUevent end = ended ? NULL : stream_end_event(&key);
            spin_lock(&pool->busy);
            if (!record->is_used || !graph_stream_is_same(&record->key, &key)) {
                ended = true; /* another thread has synchronised its context */
            } else if (ended) {
                finish(pool, record);
            } else {
                record->is_gone = true;
                record->end = end;
            }
            spin_unlock(&pool->busy);
            if (ended)
                stream_end_forget(end);
            any = true;
        }
    }
    if (any)
        stream_end_wait();
}

/* Ask about one stream: true if nothing of it is on its way any more. */
static bool ask(struct graph_pool *pool, struct graph_record *record, uint64_t context) {
    if (!stream_end_ask())
        return false;
    spin_lock(&pool->busy);
    struct graph_stream key = record->key;
    CUevent end = record->end;
    uint32_t changes = pool->changes;
    bool is_used = record->is_used, can = can_ask(record, context);
    spin_unlock(&pool->busy);
    bool ended = is_used && (end ? stream_end_event_is_reached(end) : can && stream_end_is_reached(&key));
    spin_lock(&pool->busy);
    ended = ended && pool->changes == changes && record->is_used && record->end == end &&
            graph_stream_is_same(&record->key, &key);
    CUevent mine = ended ? finish(pool, record) : NULL;
    spin_unlock(&pool->busy);
    stream_end_asked();
    stream_end_forget(mine);
    return ended || !is_used;
}

bool graph_pool_ask(struct graph_pool *pool) {
    CUcontext current = NULL;
    bool all = true;
    real.cuCtxGetCurrent(&current);
    uint64_t context = context_id_of(current);
    for (struct graph_record *record = pool->backlog.records; record; record = record->next)
        all &= ask(pool, record, context);
    return all;
}

/* ---- the charge -------------------------------------------------------------------------------------------------- */

/* Charge the greater of both figures; returns the driver's, or UINT64_MAX if it does not tell. */
static uint64_t settle(struct graph_pool *pool) {
    for (;;) {
        uint64_t reserved = 0;
        uint32_t changes = __atomic_load_n(&pool->changes, __ATOMIC_ACQUIRE);
        if (real.cuDeviceGetGraphMemAttribute(pool->device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved) !=
            CUDA_SUCCESS)
            return UINT64_MAX;
        spin_lock(&pool->busy);
        if (pool->changes != changes) {
            spin_unlock(&pool->busy);
            continue;
        }
        uint64_t before = pool->charged, now = granules(reserved), need = graph_backlog_needs(&pool->backlog);
        pool->charged = now > need ? now : need;
        now = pool->charged;
        spin_unlock(&pool->busy);
        if (now > before)
            account_taken(pool->card, now - before);
        else
            account_return(pool->card, before - now);
        return reserved;
    }
}

void graph_pool_settle(struct graph_pool *pool) {
    settle(pool);
}

void graph_pools_settle(void) {
    EACH_POOL(pool) settle(pool);
}

void graph_pools_context_ended(int card) {
    EACH_POOL(pool) {
        if (pool->card != card || settle(pool) != 0)
            continue;
        spin_lock(&pool->busy);
        graph_backlog_clear(&pool->backlog);
        __atomic_fetch_add(&pool->epoch, 1, __ATOMIC_RELEASE);
        spin_unlock(&pool->busy);
        settle(pool);
    }
}

void graph_pools_trim(int card) {
    EACH_POOL(pool) {
        if (pool->card != card)
            continue;
        graph_pool_ask(pool);
        real.cuDeviceGraphMemTrim(pool->device);
        settle(pool);
    }
}

uint64_t graph_pools_charged(int card) {
    uint64_t sum = 0;
    for (struct graph_pool *pool = next_open(NULL); pool; pool = next_open(pool)) {
        spin_lock(&pool->busy);
        sum += pool->card == card ? pool->charged : 0;
        spin_unlock(&pool->busy);
    }
    return sum;
}
