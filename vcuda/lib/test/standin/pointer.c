/* What does an address belong to, and what of it may other processes have? */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "process.h"

static bool on_card(const struct memory *memory) {
    return memory->kind != HOST && memory->kind != REGISTERED;
}

static CUresult attribute(void *data, int which, const struct memory *memory) {
    switch (which) {
    case 1:
        *(CUcontext *)data = memory->context;
        break;
    case 2:
        *(unsigned int *)data = on_card(memory) ? MEMORY_DEVICE : MEMORY_HOST;
        break;
    case 3:
        *(CUdeviceptr *)data = memory->base;
        break;
    case 4:
        if (on_card(memory) && memory->kind != MANAGED)
            return CUDA_ERROR_INVALID_VALUE;
        *(void **)data = (void *)memory->base;
        break;
    case 6:
        *(int *)data = 0;
        break;
    case 7:
        *(unsigned long long *)data = memory->id;
        break;
    case 8:
        *(int *)data = memory->kind == MANAGED;
        break;
    case 9:
        *(int *)data = memory->device->ordinal;
        break;
    case 10:
        *(int *)data = memory->kind == LINEAR;
        break;
    case 11:
        *(CUdeviceptr *)data = memory->base;
        break;
    case 12:
        *(size_t *)data = memory->bytes;
        break;
    case 13:
        *(int *)data = 1;
        break;
    case 14:
        *(uint64_t *)data = memory->kind == MAPPED;
        break;
    case 15:
        *(int *)data = 1;
        break;
    case 16:
        *(int *)data = 3;
        break; /* read and write */
    case 17:
        *(CUmemoryPool *)data = memory->pool;
        break;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

CUresult model_cuPointerGetAttribute(void *data, int which, CUdeviceptr pointer) {
    if (!data)
        return CUDA_ERROR_INVALID_VALUE;
    process_lock();
    struct memory *memory = map_find((uintptr_t)pointer);
    CUresult result = memory ? attribute(data, which, memory) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && (which == 3 || (which == 4 && memory)))
        *(CUdeviceptr *)data = pointer;
    process_unlock();
    return result;
}

/* Several at once: what is unknown about a pointer reads as zero. */
CUresult model_cuPointerGetAttributes(unsigned int count, const int *which, void **data, CUdeviceptr pointer) {
    static const unsigned char bytes[] = {0, 8, 4, 8, 8, 16, 4, 8, 4, 4, 4, 8, 8, 4, 8, 4, 4, 8};
    if (!which || !data)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int at = 0; at < count; at++) {
        CUresult result = model_cuPointerGetAttribute(data[at], which[at], pointer);
        if (result == CUDA_SUCCESS || which[at] < 1 || which[at] >= (int)sizeof bytes)
            continue;
        memset(data[at], which[at] == 9 ? 0xff : 0, bytes[which[at]]);
    }
    return CUDA_SUCCESS;
}
CUresult model_cuPointerSetAttribute(const void *value, int which, CUdeviceptr pointer) {
    process_lock();
    struct memory *memory = map_find((uintptr_t)pointer);
    process_unlock();
    return value && which == 6 && memory ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- memory of one process in another ---------------------------------------------------------------------------
 *
 * An allocation whose handle is asked for moves into a file in the state directory, at the same address. The
 * handle is the file's name and the place in it. The memory stays charged to the process that allocated it, until
 * it frees it; with it, or with its end, the file goes.
 */

struct ipc {
    char name[40];
    uint64_t offset, bytes, file_bytes;
};

static void ipc_path(char *path, size_t size, const char *name) {
    snprintf(path, size, "%s/%s", config_read()->state, name);
}

void forget_share(const char *name) {
    char path[384];
    ipc_path(path, sizeof path, name);
    if (name[0])
        unlink(path);
}

/* Write what has been touched, and put the file where the pages were. */
static bool move_into_file(char *base, size_t bytes, const char *path) {
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return false;
    fchmod(fd, 0666);
    bool moved = ftruncate(fd, (off_t)bytes) == 0;
    for (size_t at = 0; moved && at < bytes; at += 4096) {
        unsigned char resident = 0;
        if (mincore(base + at, 4096, &resident) == 0 && (resident & 1))
            moved = pwrite(fd, base + at, 4096, (off_t)at) == 4096;
    }
    if (moved)
        moved = mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED;
    close(fd);
    return moved;
}

static CUresult export_memory(struct memory *memory, struct ipc *handle) {
    if (memory->kind != LINEAR)
        return CUDA_ERROR_INVALID_VALUE;
    struct backing backing = memory_backing(memory);
    if (!backing.share[0]) {
        struct hold *hold = &memory->device->hold;
        card_lock(hold);
        struct slot *slot = &hold->card->slot[hold->mine];
        snprintf(backing.share, SHARE_NAME, "ipc-%016llx-%u", (unsigned long long)slot->nonce, slot->shared_files++);
        card_unlock(hold);
        char path[384];
        ipc_path(path, sizeof path, backing.share);
        if (!move_into_file(backing.base, backing.bytes, path)) {
            backing.share[0] = '\0';
            return CUDA_ERROR_OPERATING_SYSTEM;
        }
    }
    snprintf(handle->name, sizeof handle->name, "%s", backing.share);
    handle->offset = memory->base - (uintptr_t)backing.base;
    handle->bytes = memory->bytes;
    handle->file_bytes = backing.bytes;
    return CUDA_SUCCESS;
}

CUresult model_cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr pointer) {
    NEED_CONTEXT(context);
    (void)context;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    struct ipc handle = {.name = ""};
    process_lock();
    struct memory *memory = map_find((uintptr_t)pointer);
    CUresult result = memory ? export_memory(memory, &handle) : CUDA_ERROR_INVALID_VALUE;
    process_unlock();
    if (result == CUDA_SUCCESS) {
        memset(out, 0, sizeof *out);
        _Static_assert(sizeof handle == sizeof *out, "a handle is 64 bytes");
        memcpy(out, &handle, sizeof handle);
    }
    return result;
}

CUresult model_cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle raw, unsigned int flags) {
    NEED_CONTEXT(context);
    struct ipc handle;
    (void)flags;
    memcpy(&handle, &raw, sizeof handle);
    handle.name[sizeof handle.name - 1] = '\0';
    bool inside = handle.offset < handle.file_bytes && handle.bytes <= handle.file_bytes - handle.offset;
    if (!out || !inside || strncmp(handle.name, "ipc-", 4) != 0 || strchr(handle.name, '/'))
        return CUDA_ERROR_INVALID_VALUE;
    char path[384];
    ipc_path(path, sizeof path, handle.name);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return CUDA_ERROR_INVALID_VALUE;
    void *pages = mmap(NULL, (size_t)handle.file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (pages == MAP_FAILED)
        return CUDA_ERROR_INVALID_VALUE;
    process_lock();
    map_add((struct memory){.base = (uintptr_t)pages + handle.offset,
                            .bytes = (size_t)handle.bytes,
                            .backed = (size_t)handle.file_bytes,
                            .offset = (size_t)handle.offset,
                            .kind = IPC,
                            .device = context->device,
                            .context = context});
    device_shares(context->device, granules((int64_t)handle.bytes));
    process_unlock();
    *out = (uintptr_t)pages + handle.offset;
    return CUDA_SUCCESS;
}
ALIAS(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2);

CUresult model_cuIpcCloseMemHandle(CUdeviceptr pointer) {
    process_lock();
    struct memory *memory = map_find((uintptr_t)pointer);
    bool known = memory && memory->base == (uintptr_t)pointer && memory->kind == IPC;
    if (known)
        memory_release(memory);
    process_unlock();
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
