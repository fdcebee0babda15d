/* Settings of a context that take memory: stacks of threads, the buffer of printf, the heap of malloc in kernels. */
#include <pthread.h>

#include "cuda/account.h"
#include "cuda/allocation_table.h"
#include "cuda/pool_account.h"
#include "cuda/claim.h"
#include "cuda/context_registry.h"
#include "interposer.h"

/* The driver has a stack for every thread that can be resident on the card. */
static uint64_t threads_of(CUdevice device) {
    int processors = 0, threads = 0;
    real.cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    real.cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device);
    return (uint64_t)processors * (uint64_t)threads;
}

static uint64_t cost(int limit, uint64_t value, CUdevice device) {
    uint64_t bytes, times = limit == CU_LIMIT_STACK_SIZE ? threads_of(device) : 1;
    return __builtin_mul_overflow(value, times, &bytes) ? UINT64_MAX : granules(bytes);
}

/* What a context has by itself is part of its reserve; what is charged here is the growth over that. `count` holds the
 * cost of the first value in granules. */
static CUresult change(const struct claim *claim, int limit, size_t before, size_t value) {
    struct allocation item;
    uint64_t key = claim->where.owner << 2 | (uint64_t)limit, wanted = cost(limit, value, claim->where.device);
    if (!allocation_take(ALLOCATION_SETTING, key, &item))
        item = (struct allocation){.key = key,
                                   .owner = claim->where.owner,
                                   .card = (int8_t)claim->where.card,
                                   .count = (uint32_t)(cost(limit, before, claim->where.device) / GRANULE),
                                   .kind = ALLOCATION_SETTING};
    uint64_t own = item.count * GRANULE, target = wanted > own ? wanted - own : 0;
    uint64_t more = target > item.bytes ? target - item.bytes : 0, less = item.bytes - target + more;
    CUresult result = more ? pool_account_reserve(item.card, more) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) {
        result = real.cuCtxSetLimit(limit, value);
        account_return(item.card, result == CUDA_SUCCESS ? less : more);
        item.bytes = result == CUDA_SUCCESS ? target : item.bytes;
    }
    context_keep(&item, claim->where.changes);
    return result;
}

CUresult hook_cuCtxSetLimit(int limit, size_t value) {
    /* A thread has the item out while the driver works: another one would take the setting for the first. */
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    struct claim claim;
    size_t before = 0;
    CUresult denied = claim_here(&claim, 0);
    if (denied != CUDA_SUCCESS)
        return denied;
    if (!claim_counts(&claim) || limit < CU_LIMIT_STACK_SIZE || limit > CU_LIMIT_MALLOC_HEAP_SIZE)
        return real.cuCtxSetLimit(limit, value);
    pthread_mutex_lock(&one_at_a_time);
    CUresult result = real.cuCtxGetLimit(&before, limit);
    result = result == CUDA_SUCCESS ? change(&claim, limit, before, value) : real.cuCtxSetLimit(limit, value);
    pthread_mutex_unlock(&one_at_a_time);
    return result;
}
