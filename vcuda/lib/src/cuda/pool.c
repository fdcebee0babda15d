/* Stream-ordered allocation. A pool is charged for what it has reserved (pool_account.c); allocations of it are
 * remembered so that each way to free them is understood, and so that a pool that was destroyed is paid for until it is
 * empty. */
#include "cuda/account.h"
#include "cuda/allocation_table.h"
#include "cuda/context_registry.h"
#include "cuda/device_map.h"
#include "cuda/discharge.h"
#include "cuda/graphmem.h"
#include "cuda/mem.h"
#include "cuda/pool_account.h"
#include "cuda/pool_choice.h"
#include "cuda/stream_meter.h"
#include "interposer.h"

typedef CUresult capturing_fn(CUstream stream, int *status);

/* In a capture nothing is allocated: it becomes a node of a graph, and counts when the graph is launched. */
static bool is_captured(capturing_fn *ask, CUstream stream) {
    int status = 0;
    if (!__atomic_load_n(&meter_captures, __ATOMIC_SEQ_CST))
        return false;
    return ask(stream, &status) == CUDA_SUCCESS && status != 0;
}

/* Reserve for an allocation; anything but CUDA_SUCCESS is the hook's answer. */
static CUresult begin(struct pool_growth *growth, CUmemoryPool pool, CUstream stream, size_t bytes, capturing_fn *ask) {
    struct pool_account *account;
    *growth = (struct pool_growth){0};
    if (is_captured(ask, stream))
        return CUDA_SUCCESS;
    CUresult result = pool_choice(pool, stream, &account);
    return result == CUDA_SUCCESS ? pool_account_begin(growth, account, bytes) : result;
}

typedef CUresult free_fn(CUdeviceptr pointer, CUstream stream);

/* What was allocated, as it seemed, in a capture: another thread may have ended that in between. The pool says whether
 * it grew. False if it did by more than the limit allows: then it goes. */
static bool was_captured(CUdeviceptr at, CUmemoryPool pool, CUstream stream, free_fn *give_back) {
    struct pool_account *account;
    struct pool_growth growth;
    if (pool_choice(pool, stream, &account) != CUDA_SUCCESS || !account ||
        pool_account_begin(&growth, account, 0) != CUDA_SUCCESS || pool_account_end(&growth, 0))
        return true;
    if (give_back(at, stream) != CUDA_SUCCESS)
        real.cuMemFree_v2(at);
    pool_account_undone(&growth);
    return false;
}

/* False if the pool grew by more than the limit allows: then the allocation goes, and what the pool keeps of it. */
static bool finish(struct pool_growth *growth, CUresult result, CUdeviceptr at, size_t bytes, CUmemoryPool pool,
                   CUstream stream, free_fn *give_back) {
    bool fits = pool_account_end(growth, result == CUDA_SUCCESS ? bytes : 0);
    if (result != CUDA_SUCCESS)
        return true;
    if (!growth->account)
        return was_captured(at, pool, stream, give_back);
    if (fits) {
        struct allocation replaced;
        if (pool_account_allocated(growth->account, at, bytes, &replaced))
            allocation_discharge(&replaced);
        return true;
    }
    give_back(at, stream);
    pool_account_undone(growth);
    return false;
}

CUresult hook_cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream stream) {
    struct pool_growth growth;
    CUdeviceptr at = 0;
    CUresult result = begin(&growth, NULL, stream, bytes, real.cuStreamIsCapturing);
    if (result != CUDA_SUCCESS)
        return result;
    result = real.cuMemAllocAsync(out ? &at : NULL, bytes, stream);
    if (!finish(&growth, result, at, bytes, NULL, stream, real.cuMemFreeAsync))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS && out)
        *out = at;
    return result;
}

CUresult hook_cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t bytes, CUstream stream) {
    struct pool_growth growth;
    CUdeviceptr at = 0;
    CUresult result = begin(&growth, NULL, stream, bytes, real.cuStreamIsCapturing_ptsz);
    if (result != CUDA_SUCCESS)
        return result;
    result = real.cuMemAllocAsync_ptsz(out ? &at : NULL, bytes, stream);
    if (!finish(&growth, result, at, bytes, NULL, stream, real.cuMemFreeAsync_ptsz))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS && out)
        *out = at;
    return result;
}

CUresult hook_cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream) {
    struct pool_growth growth;
    CUdeviceptr at = 0;
    if (!pool)
        return real.cuMemAllocFromPoolAsync(out, bytes, pool, stream);
    CUresult result = begin(&growth, pool, stream, bytes, real.cuStreamIsCapturing);
    if (result != CUDA_SUCCESS)
        return result;
    result = real.cuMemAllocFromPoolAsync(out ? &at : NULL, bytes, pool, stream);
    if (!finish(&growth, result, at, bytes, pool, stream, real.cuMemFreeAsync))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS && out)
        *out = at;
    return result;
}

CUresult hook_cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream) {
    struct pool_growth growth;
    CUdeviceptr at = 0;
    if (!pool)
        return real.cuMemAllocFromPoolAsync_ptsz(out, bytes, pool, stream);
    CUresult result = begin(&growth, pool, stream, bytes, real.cuStreamIsCapturing_ptsz);
    if (result != CUDA_SUCCESS)
        return result;
    result = real.cuMemAllocFromPoolAsync_ptsz(out ? &at : NULL, bytes, pool, stream);
    if (!finish(&growth, result, at, bytes, pool, stream, real.cuMemFreeAsync_ptsz))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS && out)
        *out = at;
    return result;
}

/* What a graph allocated can be another graph's once the stream is here; what pools hold has its own account. */
static void left_behind(bool known, const struct allocation *item, CUresult result, CUstream stream, bool per_thread) {
    if (known && result == CUDA_SUCCESS && item->kind == ALLOCATION_GRAPH)
        graphmem_freed_behind(item, stream, per_thread);
    else
        mem_left(known, item, result);
}

CUresult hook_cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    struct allocation item;
    bool known = !is_captured(real.cuStreamIsCapturing, stream) && mem_leave(pointer, &item);
    CUresult result = real.cuMemFreeAsync(pointer, stream);
    left_behind(known, &item, result, stream, false);
    return result;
}

CUresult hook_cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
    struct allocation item;
    bool known = !is_captured(real.cuStreamIsCapturing_ptsz, stream) && mem_leave(pointer, &item);
    CUresult result = real.cuMemFreeAsync_ptsz(pointer, stream);
    left_behind(known, &item, result, stream, true);
    return result;
}

/* ---- pools --------------------------------------------------------------------------------------------------------
 */

/* maxSize is left alone: a pool that the driver holds to today's limit would not grow with tomorrow's. */
CUresult hook_cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props) {
    bool refused;
    CUmemoryPool pool = NULL;
    CUresult result = real.cuMemPoolCreate(out ? &pool : NULL, props);
    if (result != CUDA_SUCCESS)
        return result;
    if (out)
        *out = pool;
    if (pool && account_open(&refused))
        pool_account_of(pool, card_of_location(props->location));
    return result;
}

/* The pools that a place has by itself: nobody made them, and of the host's nothing is counted. */
static CUresult found(CUresult result, const CUmemoryPool *out, const CUmemLocation *location) {
    bool refused;
    if (result == CUDA_SUCCESS && out && *out && location && !pool_account_find(*out) && account_open(&refused))
        pool_account_of(*out, card_of_location(*location));
    return result;
}

CUresult hook_cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *location, int type) {
    return found(real.cuMemGetDefaultMemPool(out, location, type), out, location);
}

CUresult hook_cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *location, int type) {
    return found(real.cuMemGetMemPool(out, location, type), out, location);
}

/* From now on allocations that name no pool come from another. */
static CUresult chosen(CUresult result) {
    pool_choice_changed();
    return result;
}

CUresult hook_cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
    return chosen(real.cuDeviceSetMemPool(device, pool));
}

CUresult hook_cuMemSetMemPool(CUmemLocation *location, int type, CUmemoryPool pool) {
    return chosen(real.cuMemSetMemPool(location, type, pool));
}

CUresult hook_cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value) {
    CUresult result = real.cuMemPoolSetAttribute(pool, attribute, value);
    struct pool_account *account = result == CUDA_SUCCESS && attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD && value
                                       ? pool_account_find(pool)
                                       : NULL;
    if (account)
        pool_account_set_threshold(account, *(const uint64_t *)value);
    return result;
}

CUresult hook_cuMemPoolDestroy(CUmemoryPool pool) {
    chosen(CUDA_SUCCESS);
    struct pool_account *account = pool ? pool_account_find(pool) : NULL;
    if (account)
        pool_account_closing(account);
    CUresult result = real.cuMemPoolDestroy(pool);
    if (account)
        pool_account_closed(account, result == CUDA_SUCCESS);
    return chosen(result); /* what another thread found out meanwhile */
}

CUresult hook_cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    CUresult result = real.cuMemPoolTrimTo(pool, keep);
    struct pool_account *account = pool && result == CUDA_SUCCESS ? pool_account_find(pool) : NULL;
    if (account)
        pool_account_settle(account);
    return result;
}

/* What is in it belongs to the process that exported it, and is charged there. */
CUresult hook_cuMemPoolImportFromShareableHandle(CUmemoryPool *out, void *handle, int type, unsigned long long flags) {
    CUmemoryPool pool = NULL;
    CUresult result = real.cuMemPoolImportFromShareableHandle(out ? &pool : NULL, handle, type, flags);
    if (result != CUDA_SUCCESS)
        return result;
    if (out)
        *out = pool;
    if (pool)
        pool_account_of(pool, CARD_NONE);
    return result;
}
