/* Graphs allocate at launch, from a pool of the device that keeps what it has until it is trimmed. What a launch may
 * take is found when the graph is made executable (graph_profile.c), and reserved before it runs (graph_pool.c).
 *
 * Before a launch is refused, what pools keep without using it is given back, and the launch waits until the graphs
 * before it have ended: then it needs what is live and its own peak, and no order of streams can make it need less.
 */
#include "cuda/graphmem.h"

#include <errno.h>
#include <string.h>

#include "attachment.h"
#include "cuda/account.h"
#include "cuda/context_registry.h"
#include "cuda/device_map.h"
#include "cuda/graph_profile.h"
#include "cuda/local_memory.h"
#include "cuda/pool_account.h"
#include "interposer.h"
#include "nap.h"
#include "page.h"

/* Work that a launch waits for may itself wait for the thread that launches: after this long it is refused. */
#define PATIENCE_NS UINT64_C(10000000000)

static bool any_allocates; /* some graph of this process has memory nodes */

static bool has_any(void) {
    return __atomic_load_n(&any_allocates, __ATOMIC_ACQUIRE);
}

static struct graph_profile *profile_of(const struct allocation *exec) {
    return (struct graph_profile *)(uintptr_t)exec->owner;
}

/* ---- what executable graphs there are ---------------------------------------------------------------------------- */

static uint64_t key_of(CUgraphExec exec) {
    return (uint64_t)(uintptr_t)exec;
}

/* A graph that could not be read may take anything: its launches are refused. */
static struct graph_profile *read_profile(CUgraph graph) {
    static struct graph_profile unreadable = {.peak = UINT64_MAX};
    bool readable;
    struct graph_profile *profile = graph ? graph_profile_read(graph, &readable) : NULL;
    return profile || !graph || readable ? profile : &unreadable;
}

static void forget(const struct allocation *exec) {
    if (profile_of(exec)->peak != UINT64_MAX)
        graph_profile_free(profile_of(exec));
}

static void remember(CUgraphExec exec, struct graph_profile *profile, const struct current_context *where,
                     uint64_t flags) {
    struct allocation old, item = {.key = key_of(exec),
                                   .bytes = flags,
                                   .owner = (uint64_t)(uintptr_t)profile,
                                   .count = (uint32_t)where->device,
                                   .card = (int8_t)where->card,
                                   .kind = ALLOCATION_EXEC};
    if (allocation_put(&item, &old) == ALLOCATION_REPLACED)
        forget(&old);
    __atomic_store_n(&any_allocates, true, __ATOMIC_RELEASE);
}

/* The device is that of the context in which the graph was made executable: where its launches allocate. */
static CUresult made(CUresult result, CUgraphExec *out, CUgraph graph, uint64_t flags) {
    struct current_context where;
    if (result != CUDA_SUCCESS || !out || vcuda_attached() != VCUDA_ATTACHED)
        return result;
    struct graph_profile *profile = read_profile(graph);
    if (profile && context_current(&where))
        remember(*out, profile, &where, flags);
    return result;
}

CUresult hook_cuGraphInstantiate(CUgraphExec *out, CUgraph graph, CUgraphNode *error, char *log, size_t size) {
    CUresult denied = local_graph(graph);
    return denied != CUDA_SUCCESS ? denied : made(real.cuGraphInstantiate(out, graph, error, log, size), out, graph, 0);
}

CUresult hook_cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, CUgraphNode *error, char *log, size_t size) {
    CUresult denied = local_graph(graph);
    return denied != CUDA_SUCCESS ? denied
                                  : made(real.cuGraphInstantiate_v2(out, graph, error, log, size), out, graph, 0);
}

CUresult hook_cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags) {
    CUresult denied = local_graph(graph);
    return denied != CUDA_SUCCESS ? denied
                                  : made(real.cuGraphInstantiateWithFlags(out, graph, flags), out, graph, flags);
}

/* An update is charged at the next launch, as what the graph then does. */
static CUresult updated(CUresult result, CUgraphExec exec, CUgraph graph) {
    struct allocation item, old;
    if (result != CUDA_SUCCESS || !has_any() || !allocation_get(ALLOCATION_EXEC, key_of(exec), &item))
        return result;
    struct graph_profile *profile = read_profile(graph);
    if (!profile)
        return result;
    old = item;
    item.owner = (uint64_t)(uintptr_t)profile;
    allocation_set_owner(ALLOCATION_EXEC, item.key, item.owner);
    forget(&old);
    return result;
}

CUresult hook_cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error, int *why) {
    CUresult denied = local_graph(graph);
    return denied != CUDA_SUCCESS ? denied : updated(real.cuGraphExecUpdate(exec, graph, error, why), exec, graph);
}

CUresult hook_cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, void *info) {
    CUresult denied = local_graph(graph);
    return denied != CUDA_SUCCESS ? denied : updated(real.cuGraphExecUpdate_v2(exec, graph, info), exec, graph);
}

CUresult hook_cuGraphExecDestroy(CUgraphExec exec) {
    struct allocation item, old;
    bool known = has_any() && allocation_take(ALLOCATION_EXEC, key_of(exec), &item);
    CUresult result = real.cuGraphExecDestroy(exec);
    if (known && result == CUDA_SUCCESS)
        forget(&item);
    else if (known)
        allocation_put(&item, &old);
    return result;
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

/* A graph's allocation that no call has freed so far. */
static uint64_t live_bytes(const struct graph_pool *pool, CUdeviceptr at) {
    struct allocation item;
    return allocation_get(ALLOCATION_GRAPH, at, &item) && item.kind == ALLOCATION_GRAPH &&
                   item.count == graph_pool_epoch(pool)
               ? item.bytes
               : 0;
}

static struct graph_step step_of(const struct graph_pool *pool, const struct graph_profile *profile, bool auto_free) {
    struct graph_step step = {.peak = profile->peak};
    for (size_t i = 0; i < profile->unfreed_count; i++) {
        step.change += (int64_t)profile->unfreed[i].bytes;
        step.freed_before += auto_free ? live_bytes(pool, profile->unfreed[i].at) : 0;
    }
    for (size_t i = 0; i < profile->freed_count; i++)
        step.change -= (int64_t)live_bytes(pool, profile->freed[i]);
    return step;
}

/* Charge what is missing, if the limit allows it without anybody giving back or waiting; `last` refuses for good. */
static bool reserved(struct graph_pool *pool, int card, struct graph_launch *launch, bool last) {
    uint64_t missing;
    while (!graph_pool_enter(pool, launch->stream, &launch->step, &missing)) {
        if ((!last && !account_makes_room(card, missing)) || pool_account_charge(card, missing) != CUDA_SUCCESS)
            return false;
        graph_pool_add(pool, missing);
    }
    return true;
}

/* Wait until no graph is on its way any more. */
static void wait_for_graphs(struct graph_pool *pool) {
    uint64_t began = vcuda_now_ns();
    int saved = errno;
    while (!graph_pool_ask(pool) && vcuda_now_ns() - began < PATIENCE_NS)
        nap(50000);
    errno = saved;
}

static CUresult enter(struct graph_launch *launch, int card) {
    if (launch->step.peak == UINT64_MAX)
        return pool_account_charge(card, UINT64_MAX);
    if (reserved(launch->pool, card, launch, false))
        return CUDA_SUCCESS;
    pool_account_relieve(card);
    if (reserved(launch->pool, card, launch, false))
        return CUDA_SUCCESS;
    wait_for_graphs(launch->pool);
    pool_account_relieve(card);
    return reserved(launch->pool, card, launch, true) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult begin(struct graph_launch *launch, const struct allocation *exec, CUstream stream, bool per_thread) {
    struct current_context where;
    *launch = (struct graph_launch){.pool = graph_pool_of((CUdevice)exec->count, exec->card)};
    if (!launch->pool)
        return CUDA_ERROR_OUT_OF_MEMORY;
    launch->profile = profile_of(exec);
    launch->stream = graph_stream_of(stream, context_current(&where) ? where.owner : 0, per_thread);
    launch->step =
        step_of(launch->pool, launch->profile, exec->bytes & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
    CUresult result = enter(launch, exec->card);
    if (result != CUDA_SUCCESS)
        launch->pool = NULL;
    return result;
}

CUresult graphmem_begin(struct graph_launch *launch, CUgraphExec exec, CUstream stream, bool per_thread) {
    struct allocation item;
    launch->pool = NULL;
    if (!has_any() || !allocation_get(ALLOCATION_EXEC, key_of(exec), &item))
        return CUDA_SUCCESS;
    return begin(launch, &item, stream, per_thread);
}

void graphmem_end(struct graph_launch *launch, CUresult result) {
    struct allocation item;
    if (!launch->pool)
        return;
    if (result != CUDA_SUCCESS)
        graph_pool_withdraw(launch->pool, launch->stream, &launch->step);
    for (size_t i = 0; result == CUDA_SUCCESS && i < launch->profile->freed_count; i++)
        allocation_take(ALLOCATION_GRAPH, launch->profile->freed[i], &item);
    for (size_t i = 0; result == CUDA_SUCCESS && i < launch->profile->unfreed_count; i++)
        allocation_put(&(struct allocation){.key = launch->profile->unfreed[i].at,
                                            .bytes = launch->profile->unfreed[i].bytes,
                                            .owner = (uint64_t)(uintptr_t)launch->pool,
                                            .count = graph_pool_epoch(launch->pool),
                                            .card = CARD_NONE,
                                            .kind = ALLOCATION_GRAPH},
                       &item);
    graph_pool_settle(launch->pool);
}

void graphmem_freed_behind(const struct allocation *item, CUstream stream, bool per_thread) {
    struct current_context where;
    uint64_t context = context_current(&where) ? where.owner : 0;
    graph_pool_freed_behind((struct graph_pool *)(uintptr_t)item->owner, graph_stream_of(stream, context, per_thread),
                            item->bytes, item->count);
}

/* ---- uploads: the pages come at once, and nothing is allocated --------------------------------------------------- */

/* What the graph left allocated has its pages already. */
static uint64_t unmapped(const struct allocation *exec) {
    const struct graph_profile *profile = profile_of(exec);
    struct graph_pool *pool = graph_pool_of((CUdevice)exec->count, exec->card);
    uint64_t mapped = 0;
    for (size_t i = 0; pool && i < profile->unfreed_count; i++)
        mapped += live_bytes(pool, profile->unfreed[i].at);
    return profile->peak == UINT64_MAX ? UINT64_MAX : profile->peak > mapped ? profile->peak - mapped : 0;
}

static CUresult upload(CUgraphExec exec, CUstream stream, bool per_thread, CUresult (*call)(CUgraphExec, CUstream)) {
    struct graph_launch launch = {.pool = NULL};
    struct allocation item;
    struct graph_profile pages = {0};
    CUresult result = CUDA_SUCCESS;
    if (has_any() && allocation_get(ALLOCATION_EXEC, key_of(exec), &item)) {
        pages.peak = unmapped(&item);
        item.owner = (uint64_t)(uintptr_t)&pages;
        result = begin(&launch, &item, stream, per_thread);
    }
    if (result != CUDA_SUCCESS)
        return result;
    result = call(exec, stream);
    graphmem_end(&launch, result);
    return result;
}

CUresult hook_cuGraphUpload(CUgraphExec exec, CUstream stream) {
    return upload(exec, stream, false, real.cuGraphUpload);
}

CUresult hook_cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
    return upload(exec, stream, true, real.cuGraphUpload_ptsz);
}

/* CUDA_GRAPH_INSTANTIATE_PARAMS begins with the flags and the stream of the upload. */
struct instantiation {
    uint64_t flags;
    CUstream upload;
};

/* One that is uploaded at once has its memory before it has a name. */
static CUresult with_params(CUresult (*make)(CUgraphExec *, CUgraph, void *), CUgraphExec *out, CUgraph graph,
                            void *params, bool per_thread) {
    struct instantiation how = {0};
    struct current_context where;
    struct graph_profile *profile = NULL, pages = {0};
    struct graph_launch launch = {.pool = NULL};
    CUresult result = local_graph(graph);
    if (params)
        memcpy(&how, params, sizeof how);
    if (result == CUDA_SUCCESS && (how.flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) &&
        vcuda_attached() == VCUDA_ATTACHED && (profile = read_profile(graph)) && context_current(&where)) {
        pages.peak = profile->peak;
        struct allocation item = {
            .owner = (uint64_t)(uintptr_t)&pages, .count = (uint32_t)where.device, .card = (int8_t)where.card};
        result = begin(&launch, &item, how.upload, per_thread);
    }
    if (profile)
        forget(&(struct allocation){.owner = (uint64_t)(uintptr_t)profile});
    if (result != CUDA_SUCCESS)
        return result;
    result = made(make(out, graph, params), out, graph, how.flags);
    graphmem_end(&launch, result);
    return result;
}

CUresult hook_cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph, void *params) {
    return with_params(real.cuGraphInstantiateWithParams, out, graph, params, false);
}

CUresult hook_cuGraphInstantiateWithParams_ptsz(CUgraphExec *out, CUgraph graph, void *params) {
    return with_params(real.cuGraphInstantiateWithParams_ptsz, out, graph, params, true);
}

CUresult hook_cuDeviceGraphMemTrim(CUdevice device) {
    CUresult result = real.cuDeviceGraphMemTrim(device);
    struct graph_pool *pool =
        result == CUDA_SUCCESS && has_any() ? graph_pool_of(device, device_map_card(device)) : NULL;
    if (pool)
        graph_pool_settle(pool);
    return result;
}
