/* Settings of a context that take memory: stacks of threads, the buffer of printf, the heap of malloc in kernels; the
 * local memory of its kernels, which is of the stacks' kind: the larger of the two counts; and its streams. */
#include "cuda/setting.h"

#include <pthread.h>

#include "cuda/account.h"
#include "cuda/allocation_table.h"
#include "cuda/charge.h"
#include "cuda/pool_account.h"
#include "interposer.h"

/* In place of a limit's number, in the keys of settings: `count` is the most local memory a thread that a kernel of the
 * context has had, and the most streams that it has had at once. */
#define MOST_LOCAL 3
#define MOST_STREAMS 4

/* Per-thread local memory comes in pieces of that size at most: a formula of NVIDIA's says 128 or 256 bytes
 * (forums.developer.nvidia.com/t/memory-required-for-kernel-launch/39558). */
#define LOCAL_PIECE 256

/* A thread has the item out while the driver works: another one would take the setting for the first. */
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

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

static uint64_t key_of(const struct current_context *where, int limit) {
    return where->owner << 3 | (uint64_t)limit;
}

static uint64_t most_local(const struct current_context *where) {
    struct allocation most;
    return allocation_get(ALLOCATION_SETTING, key_of(where, MOST_LOCAL), &most) ? most.count : 0;
}

/* What the setting is charged so far; `count` holds the cost of the first value in granules. */
static void take(const struct current_context *where, int limit, size_t before, struct allocation *item) {
    uint64_t key = key_of(where, limit);
    if (!allocation_take(ALLOCATION_SETTING, key, item))
        *item = (struct allocation){.key = key,
                                    .owner = where->owner,
                                    .card = (int8_t)where->card,
                                    .count = (uint32_t)(cost(limit, before, where->device) / GRANULE),
                                    .kind = ALLOCATION_SETTING};
}

/* What a context has by itself is part of its reserve; what is charged here is the growth over that. */
static CUresult change(const struct charge *charge, int limit, size_t before, size_t value) {
    struct allocation item;
    take(&charge->where, limit, before, &item);
    uint64_t local = limit == CU_LIMIT_STACK_SIZE ? most_local(&charge->where) : 0;
    uint64_t wanted = cost(limit, value > local ? value : local, charge->where.device);
    uint64_t own = item.count * GRANULE, target = wanted > own ? wanted - own : 0;
    uint64_t more = target > item.bytes ? target - item.bytes : 0, less = item.bytes - target + more;
    CUresult result = more ? pool_account_reserve(item.card, more) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) {
        result = real.cuCtxSetLimit(limit, value);
        account_return(item.card, result == CUDA_SUCCESS ? less : more);
        item.bytes = result == CUDA_SUCCESS ? target : item.bytes;
    }
    context_keep(&item, charge->where.changes);
    return result;
}

CUresult hook_cuCtxSetLimit(int limit, size_t value) {
    struct charge charge;
    size_t before = 0;
    CUresult denied = charge_here(&charge, 0);
    if (denied != CUDA_SUCCESS)
        return denied;
    if (!charge_counts(&charge) || limit < CU_LIMIT_STACK_SIZE || limit > CU_LIMIT_MALLOC_HEAP_SIZE)
        return real.cuCtxSetLimit(limit, value);
    pthread_mutex_lock(&one_at_a_time);
    CUresult result = real.cuCtxGetLimit(&before, limit);
    result = result == CUDA_SUCCESS ? change(&charge, limit, before, value) : real.cuCtxSetLimit(limit, value);
    pthread_mutex_unlock(&one_at_a_time);
    return result;
}

/* Measured on an H100 (driver 580): kernels of 4, 16 and 64 KiB take at their first launch what stacks of that size
 * take when they are set, each less than what the context has already. */
static CUresult grow(const struct current_context *where, uint64_t bytes) {
    struct allocation item;
    take(where, CU_LIMIT_STACK_SIZE, SETTING_LOCAL_OWN, &item);
    uint64_t wanted = cost(CU_LIMIT_STACK_SIZE, bytes, where->device), has = item.count * GRANULE + item.bytes;
    uint64_t more = wanted > has ? wanted - has : 0;
    CUresult result = more ? pool_account_reserve(item.card, more) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) {
        item.bytes += more;
        context_keep(&(struct allocation){.key = key_of(where, MOST_LOCAL),
                                          .owner = where->owner,
                                          .card = (int8_t)where->card,
                                          .count = (uint32_t)bytes,
                                          .kind = ALLOCATION_SETTING},
                     where->changes);
    }
    context_keep(&item, where->changes);
    return result;
}

CUresult setting_local(const struct current_context *where, uint64_t bytes) {
    struct current_context owner = *where;
    owner.owner = context_owner(where->owner);
    uint64_t whole = bytes > UINT32_MAX - LOCAL_PIECE ? UINT32_MAX / LOCAL_PIECE * LOCAL_PIECE
                                                      : (bytes + LOCAL_PIECE - 1) / LOCAL_PIECE * LOCAL_PIECE;
    if (most_local(&owner) >= whole)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&one_at_a_time);
    CUresult result = most_local(&owner) >= whole ? CUDA_SUCCESS : grow(&owner, whole);
    pthread_mutex_unlock(&one_at_a_time);
    return result;
}

/* Measured on an H100 (driver 580) for 20 counts of 1 to 2,048 beside a context's first stream, which takes nothing,
 * whatever the streams' flags, priorities and use: 2 MiB for each four, and 48 KiB for each in granules that are common
 * to all, of which so much is used before. */
#define OF_A_GRANULE 4
#define COMMON (UINT64_C(48) << 10)
#define COMMON_BEFORE (UINT64_C(463) << 10)

static uint64_t streams_bytes(uint32_t streams) {
    uint64_t more = streams ? streams - 1 : 0;
    return (more + OF_A_GRANULE - 1) / OF_A_GRANULE * GRANULE + (more * COMMON + COMMON_BEFORE) / GRANULE * GRANULE;
}

CUresult setting_streams(const struct current_context *where, uint32_t streams) {
    struct allocation item;
    uint64_t key = key_of(where, MOST_STREAMS);
    CUresult result = CUDA_SUCCESS;
    if (allocation_get(ALLOCATION_SETTING, key, &item) && item.count >= streams)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&one_at_a_time);
    if (!allocation_take(ALLOCATION_SETTING, key, &item))
        item = (struct allocation){
            .key = key, .owner = where->owner, .card = (int8_t)where->card, .kind = ALLOCATION_SETTING};
    if (streams > item.count &&
        (result = pool_account_reserve(item.card, streams_bytes(streams) - item.bytes)) == CUDA_SUCCESS) {
        item.bytes = streams_bytes(streams);
        item.count = streams;
    }
    context_keep(&item, where->changes);
    pthread_mutex_unlock(&one_at_a_time);
    return result;
}
