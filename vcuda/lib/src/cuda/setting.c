/* Settings of a context that take memory: stacks of threads, the buffer of printf, the heap of malloc in kernels. */
#include "cuda/account.h"
#include "cuda/allocation_table.h"
#include "cuda/pool_account.h"
#include "cuda/claim.h"
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
CUresult hook_cuCtxSetLimit(int limit, size_t value) {
    struct claim claim;
    struct allocation old, item;
    size_t before = 0;
    CUresult denied = claim_here(&claim, 0);
    if (denied != CUDA_SUCCESS)
        return denied;
    if (!claim_counts(&claim) || limit < CU_LIMIT_STACK_SIZE || limit > CU_LIMIT_MALLOC_HEAP_SIZE ||
        real.cuCtxGetLimit(&before, limit) != CUDA_SUCCESS)
        return real.cuCtxSetLimit(limit, value);
    uint64_t key = claim.where.owner << 2 | (uint64_t)limit, wanted = cost(limit, value, claim.where.device);
    if (!allocation_get(ALLOCATION_SETTING, key, &item))
        item = (struct allocation){.key = key,
                                   .owner = claim.where.owner,
                                   .card = (int8_t)claim.where.card,
                                   .count = (uint32_t)(cost(limit, before, claim.where.device) / GRANULE),
                                   .kind = ALLOCATION_SETTING};
    uint64_t own = item.count * GRANULE, target = wanted > own ? wanted - own : 0;
    if (target > item.bytes && pool_account_reserve(item.card, target - item.bytes) != CUDA_SUCCESS)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = real.cuCtxSetLimit(limit, value);
    uint64_t more = target > item.bytes ? target - item.bytes : 0, less = item.bytes - target + more;
    if (result != CUDA_SUCCESS) {
        account_return(item.card, more);
        return result;
    }
    account_return(item.card, less);
    item.bytes = target;
    allocation_put(&item, &old);
    return result;
}
