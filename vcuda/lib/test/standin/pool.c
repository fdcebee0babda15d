/*
 * Stream-ordered memory. A pool takes 32 MiB from the card at a time as it grows, keeps what is freed, and gives back
 * what lies above its release threshold at the next synchronisation, as the driver documents. Contents have no
 * order: memory is usable at the call.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "process.h"

#define STEP (32 * MIB)

static int64_t steps(int64_t bytes) {
    return (bytes + STEP - 1) / STEP * STEP;
}

static void shrink(struct pool *pool, int64_t keep) {
    int64_t target = steps(keep > pool->used ? keep : pool->used);
    if (target >= pool->reserved)
        return;
    if (pool->location_type == LOCATION_DEVICE)
        device_charge(pool->device, target - pool->reserved);
    pool->reserved = target;
}

void pool_sync(struct device *device) {
    for (struct pool *pool = device->pools; pool; pool = pool->next)
        if (!pool->destroyed)
            shrink(pool, pool->threshold);
}

static void end(struct pool *pool) {
    shrink(pool, 0);
    for (struct pool **at = &pool->device->pools; *at; at = &(*at)->next)
        if (*at == pool) {
            *at = pool->next;
            break;
        }
    free(pool);
}

static struct pool *pool_new(struct device *device, int location_type) {
    struct pool *pool = calloc(1, sizeof *pool);
    if (!pool)
        return NULL;
    pool->device = device;
    pool->location_type = location_type;
    pool->flags[0] = pool->flags[1] = pool->flags[2] = 1;
    pool->next = device->pools;
    device->pools = pool;
    return pool;
}

struct pool *pool_default(struct device *device) {
    if (!device->default_pool)
        device->default_pool = pool_new(device, LOCATION_DEVICE);
    if (device->default_pool)
        device->default_pool->implicit = true;
    return device->default_pool;
}

CUresult pool_alloc(struct pool *pool, size_t bytes, uintptr_t *out) {
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > (size_t)1 << 46)
        return CUDA_ERROR_OUT_OF_MEMORY;
    int64_t taken = ((int64_t)bytes + 511) / 512 * 512, wanted = steps(pool->used + taken);
    if (pool->max_bytes && granules(pool->used + taken) > granules(pool->max_bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (wanted > pool->reserved) {
        bool host = pool->location_type != LOCATION_DEVICE;
        if (!host && !device_charge(pool->device, wanted - pool->reserved))
            return CUDA_ERROR_OUT_OF_MEMORY;
        pool->reserved = wanted;
    }
    void *pages = map_pages(bytes);
    if (!pages)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pool->used += taken;
    if (pool->used > pool->used_high)
        pool->used_high = pool->used;
    if (pool->reserved > pool->reserved_high)
        pool->reserved_high = pool->reserved;
    *out = (uintptr_t)pages;
    map_add((struct memory){.base = *out,
                            .bytes = bytes,
                            .backed = (bytes + 4095) / 4096 * 4096,
                            .kind = ASYNC,
                            .device = pool->device,
                            .pool = pool});
    return CUDA_SUCCESS;
}

void pool_release(struct memory *memory) {
    struct pool *pool = memory->pool;
    pool->used -= ((int64_t)memory->bytes + 511) / 512 * 512;
    munmap((void *)memory->base, memory->backed);
    map_remove(memory->base);
    if (pool->destroyed && !map_of_pool(pool))
        end(pool);
}

static struct pool *current_pool(struct device *device) {
    return device->current_pool ? device->current_pool : pool_default(device);
}

static CUresult alloc(CUdeviceptr *out, size_t bytes, struct pool *pool, CUstream handle) {
    NEED_CONTEXT(context);
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (!config_read()->pools)
        return CUDA_ERROR_NOT_SUPPORTED;
    uintptr_t at = 0;
    if (!context_lock(context))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    struct stream *stream = stream_of(context, handle);
    CUresult result;
    if (capturing(stream) && !config_read()->capture_ends) {
        CUgraphNodeParams params = {.type = NODE_MEM_ALLOC, .alloc = {.bytes = bytes}};
        result = capture_alloc(stream, &params);
        at = (uintptr_t)params.alloc.pointer;
    } else {
        pool = pool ? pool : current_pool(stream->context->device);
        result = !pool             ? CUDA_ERROR_OUT_OF_MEMORY
                 : pool->destroyed ? CUDA_ERROR_INVALID_VALUE
                                   : pool_alloc(pool, bytes, &at);
    }
    process_unlock();
    if (result == CUDA_SUCCESS)
        *out = at;
    return result;
}

CUresult model_cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream stream) {
    return alloc(out, bytes, NULL, stream);
}
CUresult model_cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return pool ? alloc(out, bytes, pool, stream) : CUDA_ERROR_INVALID_VALUE;
}

CUresult model_cuMemFreeAsync(CUdeviceptr pointer, CUstream handle) {
    NEED_CONTEXT(context);
    process_lock();
    struct stream *stream = stream_of(context, handle);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    struct memory *memory = map_find((uintptr_t)pointer);
    if (capturing(stream) && !config_read()->capture_ends) {
        CUgraphNodeParams params = {.type = NODE_MEM_FREE, .free = pointer};
        result = capture_add(stream, NODE_MEM_FREE, &params);
    } else if (memory && memory->base == (uintptr_t)pointer &&
               (memory->kind == ASYNC || memory->kind == LINEAR || memory->kind == GRAPH)) {
        memory_release(memory);
        result = CUDA_SUCCESS;
    }
    process_unlock();
    return result;
}

CUresult model_cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props) {
    if (!out || !props || (props->type != TYPE_PINNED && props->type != TYPE_MANAGED))
        return CUDA_ERROR_INVALID_VALUE;
    bool anywhere = props->type == TYPE_MANAGED && props->location.type == LOCATION_NONE;
    bool on_card = props->location.type == LOCATION_DEVICE;
    struct device *device = device_of(on_card ? props->location.id : 0);
    if (!device || (!anywhere && props->location.type == LOCATION_NONE))
        return CUDA_ERROR_INVALID_VALUE;
    process_lock();
    /* What may be anywhere is on the card as soon as that uses it. */
    struct pool *pool = pool_new(device, anywhere ? LOCATION_DEVICE : props->location.type);
    if (pool) {
        pool->max_bytes = (int64_t)props->max_bytes;
        pool->handle_types = props->handle_types;
    }
    process_unlock();
    *out = pool;
    return pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
/* What was allocated of it lives on, and the pool with it. */
CUresult model_cuMemPoolDestroy(CUmemoryPool pool) {
    if (!pool || pool->implicit || pool->destroyed)
        return CUDA_ERROR_INVALID_VALUE;
    process_lock();
    if (pool->device->current_pool == pool)
        pool->device->current_pool = NULL;
    pool->destroyed = true;
    if (!map_of_pool(pool))
        end(pool);
    process_unlock();
    return CUDA_SUCCESS;
}
CUresult model_cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    if (!pool)
        return CUDA_ERROR_INVALID_VALUE;
    process_lock();
    shrink(pool, (int64_t)keep);
    process_unlock();
    return CUDA_SUCCESS;
}
CUresult model_cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value) {
    if (!pool || !value)
        return CUDA_ERROR_INVALID_VALUE;
    process_lock();
    CUresult result = CUDA_SUCCESS;
    uint64_t wide = attribute >= 4 ? *(uint64_t *)value : 0;
    switch (attribute) {
    case 1:
    case 2:
    case 3:
        pool->flags[attribute - 1] = *(int *)value;
        break;
    case 4:
        pool->threshold = wide > INT64_MAX / 2 ? INT64_MAX / 2 : (int64_t)wide;
        break;
    case 6:
        pool->reserved_high = pool->reserved;
        break;
    case 8:
        pool->used_high = pool->used;
        break;
    default:
        result = CUDA_ERROR_INVALID_VALUE;
    }
    process_unlock();
    return result;
}
CUresult model_cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value) {
    if (!pool || !value)
        return CUDA_ERROR_INVALID_VALUE;
    process_lock();
    CUresult result = CUDA_SUCCESS;
    switch (attribute) {
    case 1:
    case 2:
    case 3:
        *(int *)value = pool->flags[attribute - 1];
        break;
    case 4:
        *(uint64_t *)value = (uint64_t)pool->threshold;
        break;
    case 5:
        *(uint64_t *)value = (uint64_t)pool->reserved;
        break;
    case 6:
        *(uint64_t *)value = (uint64_t)pool->reserved_high;
        break;
    case 7:
        *(uint64_t *)value = (uint64_t)pool->used;
        break;
    case 8:
        *(uint64_t *)value = (uint64_t)pool->used_high;
        break;
    case 9:
        *(int *)value = 1;
        break;
    case 10:
        *(int *)value = pool->handle_types;
        break;
    case 11:
        *(int *)value = pool->device->ordinal;
        break;
    case 12:
        *(int *)value = pool->location_type;
        break;
    case 13:
        *(uint64_t *)value = (uint64_t)pool->max_bytes;
        break;
    default:
        result = CUDA_ERROR_INVALID_VALUE;
    }
    process_unlock();
    return result;
}
CUresult model_cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count) {
    return pool && (map || !count) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult model_cuMemPoolGetAccess(int *flags, CUmemoryPool pool, CUmemLocation *location) {
    if (!flags || !pool || !location)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = location->id == pool->device->ordinal ? 3 : 0;
    return CUDA_SUCCESS;
}

static CUresult pool_get(CUmemoryPool *out, CUdevice ordinal, bool only_default) {
    struct device *device = device_of(ordinal);
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!config_read()->pools)
        return CUDA_ERROR_NOT_SUPPORTED;
    process_lock();
    *out = only_default ? pool_default(device) : current_pool(device);
    process_unlock();
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult model_cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice device) {
    return pool_get(out, device, true);
}
CUresult model_cuDeviceGetMemPool(CUmemoryPool *out, CUdevice device) {
    return pool_get(out, device, false);
}
CUresult model_cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool pool) {
    struct device *device = device_of(ordinal);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!pool || pool->device != device)
        return CUDA_ERROR_INVALID_VALUE;
    device->current_pool = pool;
    return CUDA_SUCCESS;
}

/* The same by location, since 13.0. */
static CUresult by_location(CUmemoryPool *out, const CUmemLocation *location, int type, bool only_default) {
    if (!out || !location || type != TYPE_PINNED)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (location->type == LOCATION_DEVICE)
        return pool_get(out, location->id, only_default);
    if (location->type != LOCATION_HOST && location->type != LOCATION_HOST_NUMA)
        return CUDA_ERROR_NOT_SUPPORTED;
    process_lock();
    struct pool **host = &process.host_pool;
    if (!*host && (*host = pool_new(&process.device[0], LOCATION_HOST)))
        (*host)->implicit = true;
    *out = *host;
    process_unlock();
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult model_cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *location, int type) {
    return by_location(out, location, type, true);
}
CUresult model_cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *location, int type) {
    return by_location(out, location, type, false);
}
CUresult model_cuMemSetMemPool(CUmemLocation *location, int type, CUmemoryPool pool) {
    if (!location || type != TYPE_PINNED || location->type != LOCATION_DEVICE)
        return CUDA_ERROR_NOT_SUPPORTED;
    return model_cuDeviceSetMemPool(location->id, pool);
}
