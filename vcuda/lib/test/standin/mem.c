/* Linear, managed and host memory; what a pointer is. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "process.h"
#include "vmm.h"

/* Allocations below 1 MiB share blocks of 2 MiB, in units of 512 bytes. */
#define SMALL (1 << 20)
enum { UNIT = 512, UNITS = 2 * 1024 * 1024 / UNIT };

struct block {
    struct block *next;
    struct context *context;
    char *base;
    int free_units;
    char share[SHARE_NAME];
    uint8_t used[UNITS];
};

struct backing memory_backing(struct memory *memory) {
    if (memory->block)
        return (struct backing){memory->block->base, (size_t)GRANULE, memory->block->share};
    return (struct backing){(char *)memory->base, memory->backed, memory->share};
}

static int find_run(const struct block *block, int units) {
    int run = 0;
    for (int at = 0; at < UNITS; at++) {
        if (block->used[at]) {
            run = 0;
            const uint8_t *next = memchr(block->used + at, 0, UNITS - (size_t)at);
            if (!next)
                return -1;
            at = (int)(next - block->used) - 1;
        } else if (++run == units) {
            return at - units + 1;
        }
    }
    return -1;
}

static struct block *new_block(struct context *context) {
    if (!device_charge(context->device, GRANULE))
        return NULL;
    struct block *block = calloc(1, sizeof *block);
    char *base = block ? map_pages((size_t)GRANULE) : NULL;
    if (!base) {
        free(block);
        device_charge(context->device, -GRANULE);
        return NULL;
    }
    block->context = context;
    block->base = base;
    block->free_units = UNITS;
    block->next = context->device->blocks;
    context->device->blocks = block;
    return block;
}

static CUresult alloc_small(struct context *context, size_t bytes, enum kind kind, uintptr_t *out) {
    int units = (int)((bytes + UNIT - 1) / UNIT), at = -1;
    struct block *block = context->device->blocks;
    for (; block; block = block->next)
        if (block->context == context && block->free_units >= units && (at = find_run(block, units)) >= 0)
            break;
    if (!block) {
        block = new_block(context);
        at = 0;
    }
    if (!block)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memset(block->used + at, 1, (size_t)units);
    block->free_units -= units;
    *out = (uintptr_t)block->base + (uintptr_t)at * UNIT;
    map_add((struct memory){.base = *out,
                            .bytes = bytes,
                            .backed = bytes,
                            .kind = kind,
                            .device = context->device,
                            .context = context,
                            .block = block});
    return CUDA_SUCCESS;
}

static void free_small(struct memory *memory) {
    struct block *block = memory->block;
    int units = (int)((memory->bytes + UNIT - 1) / UNIT);
    memset(block->used + (memory->base - (uintptr_t)block->base) / UNIT, 0, (size_t)units);
    block->free_units += units;
    if (block->free_units < UNITS)
        return;
    struct device *device = block->context->device;
    for (struct block **at = &device->blocks; *at; at = &(*at)->next)
        if (*at == block) {
            *at = block->next;
            break;
        }
    forget_share(block->share);
    munmap(block->base, (size_t)GRANULE);
    device_charge(device, -GRANULE);
    free(block);
}

CUresult memory_alloc(struct context *context, size_t bytes, enum kind kind, uintptr_t *out) {
    if (bytes == 0 || !out)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > (size_t)1 << 46)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (bytes < SMALL && (kind == LINEAR || kind == GLOBAL))
        return alloc_small(context, bytes, kind, out);
    bool charged = kind == LINEAR || kind == GLOBAL;
    int64_t whole = granules((int64_t)bytes);
    if (charged && !device_charge(context->device, whole))
        return CUDA_ERROR_OUT_OF_MEMORY;
    void *pages = map_pages((size_t)whole);
    if (!pages) {
        if (charged)
            device_charge(context->device, -whole);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = (uintptr_t)pages;
    map_add((struct memory){.base = *out,
                            .bytes = bytes,
                            .backed = (size_t)whole,
                            .kind = kind,
                            .device = context->device,
                            .context = context});
    return CUDA_SUCCESS;
}

void memory_release(struct memory *memory) {
    int64_t whole = granules((int64_t)memory->bytes);
    switch (memory->kind) {
    case ASYNC:
        pool_release(memory);
        return;
    case GRAPH:
        memory->device->graph_used -= whole;
        break;
    case LINEAR:
    case GLOBAL:
        if (memory->block) {
            free_small(memory);
            break;
        }
        forget_share(memory->share);
        if (!range_keeps(memory->base, whole))
            device_charge(memory->device, -whole);
        munmap((void *)memory->base, memory->backed);
        break;
    case MANAGED:
        device_charge(memory->device, -memory->resident);
        munmap((void *)memory->base, memory->backed);
        break;
    case IPC:
        device_shares(memory->device, -granules((int64_t)memory->bytes));
        munmap((char *)memory->base - memory->offset, memory->backed);
        break;
    case HOST:
        munmap((char *)memory->base - memory->offset, memory->backed);
        break;
    case REGISTERED:
    case MAPPED:
    case IMPORTED:
        break;
    }
    map_remove(memory->base);
}

static CUresult alloc(CUdeviceptr *out, size_t bytes, enum kind kind) {
    NEED_CONTEXT(context);
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (capture_prohibits())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    uintptr_t at = 0;
    if (!context_lock(context))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    CUresult result = memory_alloc(context, bytes, kind, &at);
    process_unlock();
    if (result == CUDA_SUCCESS)
        *out = at;
    return result;
}

CUresult model_cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) {
    return alloc(out, bytes, LINEAR);
}

/* With `callback`: by the function that has the exported name in this process, as in a driver whose calls of its own
 * functions are not bound to itself. */
static CUresult alloc_by_name(CUdeviceptr *out, size_t bytes) {
    void *self = config_read()->callback ? dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD) : NULL;
    CUresult (*named)(CUdeviceptr *, size_t) = NULL;
    if (self)
        *(void **)&named = dlsym(self, "cuMemAlloc_v2");
    CUresult result = named ? named(out, bytes) : alloc(out, bytes, LINEAR);
    return result;
}

/* Rows are padded to 512 bytes. */
CUresult model_cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned int element) {
    if (!pitch || !width || !height || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    size_t row = (width + UNIT - 1) / UNIT * UNIT, bytes;
    if (row < width || __builtin_mul_overflow(row, height, &bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = alloc_by_name(out, bytes);
    if (result == CUDA_SUCCESS)
        *pitch = row;
    return result;
}

/* Managed memory comes to the card when it is prefetched or set there; what kernels would touch is not modelled. */
CUresult model_cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned int flags) {
    if (flags != 1 && flags != 2)
        return CUDA_ERROR_INVALID_VALUE;
    return alloc(out, bytes, MANAGED);
}

CUresult model_cuMemFree_v2(CUdeviceptr pointer) {
    NEED_CONTEXT(context);
    if (!pointer)
        return CUDA_SUCCESS;
    if (capture_prohibits())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    exec_device_wait(context->device);
    process_lock();
    struct memory *memory = map_find((uintptr_t)pointer);
    bool known = memory && memory->base == (uintptr_t)pointer && memory->kind != HOST && memory->kind != REGISTERED &&
                 memory->kind != MAPPED && memory->kind != IPC;
    if (known) {
        bool of_pool = memory->kind == ASYNC;
        memory_release(memory);
        if (of_pool)
            pool_sync(context->device); /* this free waits for the card, and what waits for it shrinks its pools */
    }
    process_unlock();
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult model_cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    NEED_CONTEXT(context);
    struct hold *hold = &context->device->hold;
    process_lock();
    physical_drop_unheld();
    process_unlock();
    card_lock(hold);
    card_reap(hold);
    int64_t used = card_used(hold), whole = hold->card->total;
    card_unlock(hold);
    if (free_bytes)
        *free_bytes = used < whole ? (size_t)(whole - used) : 0;
    if (total)
        *total = (size_t)whole;
    return CUDA_SUCCESS;
}
CUresult model_cuMemGetInfo(unsigned int *free_bytes, unsigned int *total) {
    size_t left = 0, whole = 0;
    CUresult result = model_cuMemGetInfo_v2(&left, &whole);
    if (result == CUDA_SUCCESS && free_bytes)
        *free_bytes = left > UINT32_MAX ? UINT32_MAX : (unsigned int)left;
    if (result == CUDA_SUCCESS && total)
        *total = whole > UINT32_MAX ? UINT32_MAX : (unsigned int)whole;
    return result;
}

CUresult model_cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer) {
    NEED_CONTEXT(context);
    (void)context;
    process_lock();
    struct memory *memory = map_find((uintptr_t)pointer);
    if (memory && base)
        *base = memory->base;
    if (memory && bytes)
        *bytes = memory->bytes;
    process_unlock();
    return memory ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* ---- host memory --------------------------------------------------------------------------------------------- */

CUresult model_cuMemHostAlloc(void **out, size_t bytes, unsigned int flags) {
    NEED_CONTEXT(context);
    uintptr_t at = 0;
    if (!out || flags > 7)
        return CUDA_ERROR_INVALID_VALUE;
    if (capture_prohibits())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!context_lock(context))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    CUresult result = memory_alloc(context, bytes, HOST, &at);
    if (result == CUDA_SUCCESS)
        map_find(at)->flags = flags;
    process_unlock();
    if (result == CUDA_SUCCESS)
        *out = (void *)at;
    return result;
}
CUresult model_cuMemAllocHost_v2(void **out, size_t bytes) {
    return model_cuMemHostAlloc(out, bytes, 0);
}

static CUresult drop(void *pointer, enum kind kind, CUresult otherwise) {
    process_lock();
    struct memory *memory = map_find((uintptr_t)pointer);
    bool known = memory && memory->base == (uintptr_t)pointer && memory->kind == kind;
    if (known)
        memory_release(memory);
    process_unlock();
    return known ? CUDA_SUCCESS : otherwise;
}
CUresult model_cuMemFreeHost(void *pointer) {
    return pointer ? drop(pointer, HOST, CUDA_ERROR_INVALID_VALUE) : CUDA_SUCCESS;
}
CUresult model_cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned int flags) {
    NEED_CONTEXT(context);
    if (!pointer || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    process_lock();
    bool taken = map_find((uintptr_t)pointer) || map_find((uintptr_t)pointer + bytes - 1);
    if (!taken)
        map_add((struct memory){.base = (uintptr_t)pointer,
                                .bytes = bytes,
                                .kind = REGISTERED,
                                .flags = flags,
                                .device = context->device,
                                .context = context});
    process_unlock();
    return taken ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED : CUDA_SUCCESS;
}
ALIAS(cuMemHostRegister, cuMemHostRegister_v2);
CUresult model_cuMemHostUnregister(void *pointer) {
    return drop(pointer, REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}
CUresult model_cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *pointer, unsigned int flags) {
    if (!out || flags)
        return CUDA_ERROR_INVALID_VALUE;
    process_lock();
    struct memory *memory = map_find((uintptr_t)pointer);
    process_unlock();
    *out = (uintptr_t)pointer;
    return memory ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult model_cuMemHostGetFlags(unsigned int *flags, void *pointer) {
    process_lock();
    struct memory *memory = map_find((uintptr_t)pointer);
    if (memory && flags)
        *flags = memory->flags;
    process_unlock();
    return memory && flags ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- managed memory moves ------------------------------------------------------------------------------------- */

static CUresult prefetch(CUdeviceptr pointer, size_t bytes, struct device *to) {
    process_lock();
    struct memory *memory = map_find((uintptr_t)pointer);
    CUresult result = memory && memory->kind == MANAGED ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        int64_t most = granules((int64_t)memory->bytes), moved = granules((int64_t)bytes);
        int64_t wanted = !to                               ? 0
                         : memory->resident >= most        ? memory->resident
                         : memory->resident + moved < most ? memory->resident + moved
                                                           : most;
        /* A full card evicts other pages instead of failing. */
        if (wanted != memory->resident && device_charge(memory->device, wanted - memory->resident))
            memory->resident = wanted;
    }
    process_unlock();
    return result;
}
/* Setting 64 MiB took 128 MiB of an H100: the pages, and as much again, of which nothing more is known. */
void managed_set(struct memory *memory, size_t bytes) {
    int64_t most = 2 * granules((int64_t)memory->bytes), wanted = memory->resident + 2 * granules((int64_t)bytes);
    wanted = wanted < most ? wanted : most;
    if (wanted > memory->resident && device_charge(memory->device, wanted - memory->resident))
        memory->resident = wanted;
}
CUresult model_cuMemPrefetchAsync(CUdeviceptr pointer, size_t bytes, CUdevice to, CUstream stream) {
    (void)stream;
    return prefetch(pointer, bytes, device_of(to));
}
CUresult model_cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t bytes, CUmemLocation to, unsigned int flags,
                                     CUstream stream) {
    (void)flags;
    (void)stream;
    return prefetch(pointer, bytes, to.type == LOCATION_DEVICE ? device_of(to.id) : NULL);
}
CUresult model_cuMemAdvise(CUdeviceptr pointer, size_t bytes, int advice, CUdevice device) {
    (void)bytes;
    (void)advice;
    (void)device;
    process_lock();
    struct memory *memory = map_find((uintptr_t)pointer);
    process_unlock();
    return memory && memory->kind == MANAGED ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult model_cuMemAdvise_v2(CUdeviceptr pointer, size_t bytes, int advice, CUmemLocation location) {
    return model_cuMemAdvise(pointer, bytes, advice, location.id);
}
