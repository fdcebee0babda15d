/*
 * Virtual memory management: address space and physical blocks apart. A block lives, and is charged to the process that
 * made it, while there is a handle to it or a mapping of it in any process, or a descriptor that it was exported as
 * anywhere. That the last of another process is gone is seen when the maker next calls; with the maker's end it is
 * charged no more, whoever still has it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "process.h"
#include "vmm.h"

/* The other end of a socket that stands for a dma-buf: it hangs up with the last descriptor, wherever that is. */
struct keeper {
    struct keeper *next;
    int fd;
};

struct physical {
    struct physical *next;
    struct keeper *keepers;
    CUmemAllocationProp props;
    struct device *device; /* NULL: host memory */
    size_t bytes;
    int fd, handles, mappings;
    bool imported, exported;
    bool elsewhere; /* only others hold what this process made: NVML counts it for them alone */
    ino_t inode;    /* of what its descriptors name */
    uintptr_t base; /* of linear memory, if that is what they name: its bytes are here from its free on */
};

struct mapping {
    struct mapping *next;
    uintptr_t at;
    size_t bytes;
    struct physical *physical;
};

static struct physical *blocks;
static struct mapping *mappings;

static struct physical *find(CUmemGenericAllocationHandle handle) {
    for (struct physical *at = blocks; at; at = at->next)
        if ((CUmemGenericAllocationHandle)(uintptr_t)at == handle && at->handles > 0)
            return at;
    return NULL;
}

static ino_t inode_of(int fd) {
    struct stat status;
    return fstat(fd, &status) == 0 ? status.st_ino : 0;
}

/* A lock on this byte of a block's file says that its open file holds the block: one that it was exported as, in
 * whatever process or socket its descriptors are, or the one that another process imported it with. The kernel drops it
 * with the last descriptor. */
enum { HELD_BYTE = 0x7fff0000 };
/* As <fcntl.h> has them for GNU sources. */
enum { GET_LOCK = 36, SET_LOCK = 37 };

enum { BY_DESCRIPTOR = 1, BY_FABRIC = 8 };

/* What a fabric handle says: bytes that anybody may copy, and that hold nothing by themselves. */
struct fabric {
    int pid, fd;
    ino_t inode;
    char rest[64 - 2 * sizeof(int) - sizeof(ino_t)];
};

/* Another open file of the same block, of whatever process, which holds it; -1 if it cannot be had. */
static int open_again(int pid, int fd) {
    char path[48];
    struct flock held = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = HELD_BYTE, .l_len = 1};
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
    int again = open(path, O_RDWR | O_CLOEXEC);
    if (again >= 0 && fcntl(again, SET_LOCK, &held) != 0) {
        close(again);
        again = -1;
    }
    return again;
}

/* Is a dma-buf of it open? */
static bool is_kept(struct physical *physical) {
    for (struct keeper **at = &physical->keepers; *at;) {
        struct keeper *keeper = *at;
        struct pollfd asked = {.fd = keeper->fd};
        if (poll(&asked, 1, 0) == 0)
            return true;
        *at = keeper->next;
        close(keeper->fd);
        free(keeper);
    }
    return false;
}

/* Does any open file hold the block, besides its maker's own? */
static bool is_held(struct physical *physical) {
    if (is_kept(physical))
        return true;
    struct flock asked = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = HELD_BYTE, .l_len = 1};
    return physical->exported && fcntl(physical->fd, GET_LOCK, &asked) == 0 && asked.l_type != F_UNLCK;
}

static void list_elsewhere(struct physical *physical, bool elsewhere) {
    if (physical->elsewhere != elsewhere)
        device_shares(physical->device, elsewhere ? -(int64_t)physical->bytes : (int64_t)physical->bytes);
    physical->elsewhere = elsewhere;
}

static void drop_unused(struct physical *physical) {
    if (physical->handles > 0 || physical->mappings > 0)
        return;
    if (is_held(physical)) {
        list_elsewhere(physical, physical->device && !physical->imported && physical->exported);
        return;
    }
    list_elsewhere(physical, false);
    if (physical->device && !physical->imported)
        device_charge(physical->device, -(int64_t)physical->bytes);
    else if (physical->device)
        device_shares(physical->device, -(int64_t)physical->bytes);
    if (physical->fd >= 0)
        close(physical->fd);
    for (struct physical **at = &blocks; *at; at = &(*at)->next)
        if (*at == physical) {
            *at = physical->next;
            break;
        }
    free(physical);
}

/* Those that nothing holds any more: who held them last may have been another process. */
void physical_drop_unheld(void) {
    for (struct physical *at = blocks, *next; at; at = next) {
        next = at->next;
        drop_unused(at);
    }
}

static CUresult add(const CUmemAllocationProp *props, size_t bytes, int fd, bool imported, struct device *device,
                    CUmemGenericAllocationHandle *out) {
    struct physical *physical = calloc(1, sizeof *physical);
    if (!physical)
        return CUDA_ERROR_OUT_OF_MEMORY;
    physical->props = *props;
    physical->device = device;
    physical->bytes = bytes;
    physical->fd = fd;
    physical->inode = inode_of(fd);
    physical->handles = 1;
    physical->imported = imported;
    physical->next = blocks;
    blocks = physical;
    *out = (uintptr_t)physical;
    return CUDA_SUCCESS;
}

/* ---- descriptors of linear memory ----------------------------------------------------------------------------------
 */

static struct physical *range_at(uintptr_t base) {
    struct physical *at = blocks;
    while (at && (at->base != base || at->bytes))
        at = at->next;
    return at;
}

static struct physical *range_of(const struct memory *memory) {
    struct physical *range = range_at(memory->base);
    const CUmemAllocationProp none = {0};
    CUmemGenericAllocationHandle handle;
    if (range || add(&none, 0, -1, false, memory->device, &handle) != CUDA_SUCCESS)
        return range;
    blocks->base = memory->base;
    blocks->handles = 0;
    return blocks;
}

bool range_keeps(uintptr_t base, int64_t bytes) {
    struct physical *range = range_at(base);
    if (!range || !is_held(range))
        return false;
    range->bytes = (size_t)bytes;
    return true;
}

static bool keep(struct physical *physical, int end) {
    struct keeper *keeper = calloc(1, sizeof *keeper);
    int fd = keeper ? fcntl(end, F_DUPFD_CLOEXEC, 3) : -1;
    if (fd < 0) {
        free(keeper);
        return false;
    }
    *keeper = (struct keeper){physical->keepers, fd};
    physical->keepers = keeper;
    return true;
}

/* Everything that is mapped in the range, which must be mapped as a whole. */
static CUresult keep_blocks(uintptr_t at, size_t bytes, int end) {
    size_t found = 0;
    for (struct mapping *one = mappings; one; one = one->next) {
        uintptr_t from = one->at > at ? one->at : at;
        uintptr_t to = one->at + one->bytes < at + bytes ? one->at + one->bytes : at + bytes;
        if (from >= to)
            continue;
        found += to - from;
        if (!keep(one->physical, end))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return found == bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult keep_range(uintptr_t at, size_t bytes, int end) {
    struct memory *memory = map_find(at);
    if (memory && memory->kind == MAPPED)
        return keep_blocks(at, bytes, end);
    if (!memory || memory->kind != LINEAR || memory->block || bytes > memory->backed ||
        at - memory->base > memory->backed - bytes)
        return CUDA_ERROR_INVALID_VALUE;
    struct physical *range = range_of(memory);
    return range && keep(range, end) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Only what its name says is modelled: nobody reads the memory by the descriptor. */
CUresult model_cuMemGetHandleForAddressRange(void *out, CUdeviceptr pointer, size_t bytes, int type,
                                             unsigned long long flags) {
    NEED_CONTEXT(context);
    (void)context;
    int end[2];
    if (!out || type != BY_DESCRIPTOR || flags || !bytes || (pointer | bytes) % 4096)
        return CUDA_ERROR_INVALID_VALUE;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, end) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    process_lock();
    physical_drop_unheld();
    CUresult result = keep_range((uintptr_t)pointer, bytes, end[1]);
    process_unlock();
    close(end[1]);
    if (result == CUDA_SUCCESS)
        *(int *)out = end[0];
    else
        close(end[0]);
    return result;
}

/* ---- blocks --------------------------------------------------------------------------------------------------------
 */

CUresult model_cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *props, int option) {
    (void)option;
    if (!out || !props)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (size_t)GRANULE;
    return CUDA_SUCCESS;
}

CUresult model_cuMemCreate(CUmemGenericAllocationHandle *out, size_t bytes, const CUmemAllocationProp *props,
                           unsigned long long flags) {
    if (!out || !props || flags || props->type != 1 || bytes == 0 || bytes % (size_t)GRANULE)
        return CUDA_ERROR_INVALID_VALUE;
    struct device *device = NULL;
    if (props->location.type == LOCATION_DEVICE && !(device = device_of(props->location.id)))
        return CUDA_ERROR_INVALID_DEVICE;
    if (!device && (props->location.type < LOCATION_HOST || props->location.type > LOCATION_HOST_NUMA_CURRENT))
        return CUDA_ERROR_INVALID_VALUE;
    process_lock();
    physical_drop_unheld();
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (!device || device_charge(device, (int64_t)bytes)) {
        int fd = (int)syscall(SYS_memfd_create, "standin", 1U /* close on exec */);
        if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0)
            result = add(props, bytes, fd, false, device, out);
        if (result != CUDA_SUCCESS && device)
            device_charge(device, -(int64_t)bytes);
        if (result != CUDA_SUCCESS && fd >= 0)
            close(fd);
    }
    process_unlock();
    return result;
}

CUresult model_cuMemRelease(CUmemGenericAllocationHandle handle) {
    process_lock();
    struct physical *physical = find(handle);
    if (physical) {
        physical->handles--;
        drop_unused(physical);
    }
    process_unlock();
    return physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult model_cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr hint,
                                   unsigned long long flags) {
    (void)hint;
    if (!out || !bytes || bytes % (size_t)GRANULE || flags || (alignment & (alignment - 1)))
        return CUDA_ERROR_INVALID_VALUE;
    size_t step = alignment > (size_t)GRANULE ? alignment : (size_t)GRANULE;
    char *start = mmap(NULL, bytes + step, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    char *aligned = (char *)(((uintptr_t)start + step - 1) / step * step);
    if (aligned > start)
        munmap(start, (size_t)(aligned - start));
    if (aligned < start + step)
        munmap(aligned + bytes, (size_t)(start + step - aligned));
    *out = (uintptr_t)aligned;
    return CUDA_SUCCESS;
}
CUresult model_cuMemAddressFree(CUdeviceptr pointer, size_t bytes) {
    if (!pointer || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    process_lock();
    bool mapped = false;
    for (struct mapping *at = mappings; at; at = at->next)
        mapped |= at->at < pointer + bytes && pointer < at->at + at->bytes;
    process_unlock();
    if (mapped)
        return CUDA_ERROR_INVALID_VALUE;
    return munmap((void *)(uintptr_t)pointer, bytes) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult map(uintptr_t at, size_t bytes, size_t offset, struct physical *physical) {
    if (offset > physical->bytes || bytes > physical->bytes - offset)
        return CUDA_ERROR_INVALID_VALUE;
    for (struct mapping *other = mappings; other; other = other->next)
        if (other->at < at + bytes && at < other->at + other->bytes)
            return CUDA_ERROR_INVALID_VALUE;
    struct mapping *mapping = calloc(1, sizeof *mapping);
    if (!mapping)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (mmap((void *)at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, physical->fd, (off_t)offset) ==
        MAP_FAILED) {
        free(mapping);
        return CUDA_ERROR_INVALID_VALUE;
    }
    *mapping = (struct mapping){mappings, at, bytes, physical};
    mappings = mapping;
    physical->mappings++;
    struct device *device = physical->device ? physical->device : &process.device[0];
    map_add((struct memory){.base = at, .bytes = bytes, .backed = bytes, .kind = MAPPED, .device = device});
    return CUDA_SUCCESS;
}

CUresult model_cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                        unsigned long long flags) {
    if (!pointer || !bytes || pointer % (uint64_t)GRANULE || bytes % (size_t)GRANULE || flags)
        return CUDA_ERROR_INVALID_VALUE;
    process_lock();
    struct physical *physical = find(handle);
    CUresult result = physical ? map((uintptr_t)pointer, bytes, offset, physical) : CUDA_ERROR_INVALID_VALUE;
    process_unlock();
    return result;
}

/* Whole mappings only; a range may span several. */
CUresult model_cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
    process_lock();
    bool found = false;
    for (struct mapping **at = &mappings; *at;) {
        struct mapping *mapping = *at;
        if (mapping->at < pointer || mapping->at + mapping->bytes > pointer + bytes) {
            at = &mapping->next;
            continue;
        }
        found = true;
        mmap((void *)mapping->at, mapping->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE,
             -1, 0);
        map_remove(mapping->at);
        *at = mapping->next;
        mapping->physical->mappings--;
        drop_unused(mapping->physical);
        free(mapping);
    }
    process_unlock();
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult model_cuMemSetAccess(CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc *access, size_t count) {
    (void)bytes;
    process_lock();
    struct memory *memory = map_find((uintptr_t)pointer);
    process_unlock();
    return memory && access && count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult model_cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr pointer) {
    process_lock();
    struct memory *memory = map_find((uintptr_t)pointer);
    if (memory && flags && location)
        *flags = 3;
    process_unlock();
    return memory && flags && location ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult model_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address) {
    process_lock();
    struct mapping *at = mappings;
    while (at && !((uintptr_t)address >= at->at && (uintptr_t)address < at->at + at->bytes))
        at = at->next;
    if (at && out) {
        at->physical->handles++;
        *out = (uintptr_t)at->physical;
    }
    process_unlock();
    return at && out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult model_cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *out, CUmemGenericAllocationHandle handle) {
    process_lock();
    struct physical *physical = find(handle);
    if (physical && out)
        *out = physical->props;
    process_unlock();
    return physical && out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult model_cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, int type,
                                            unsigned long long flags) {
    if (!out || flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != BY_DESCRIPTOR && type != BY_FABRIC)
        return CUDA_ERROR_NOT_SUPPORTED;
    process_lock();
    struct physical *physical = find(handle);
    bool able = physical && (physical->props.handle_types & type);
    int fd = able && type == BY_DESCRIPTOR ? open_again(getpid(), physical->fd) : -1;
    able &= fd >= 0 || type == BY_FABRIC;
    if (able && type == BY_DESCRIPTOR)
        *(int *)out = fd;
    else if (able)
        *(struct fabric *)out = (struct fabric){.pid = getpid(), .fd = physical->fd, .inode = physical->inode};
    if (able)
        physical->exported = true;
    process_unlock();
    return able ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* An open file of what was exported so, which holds it; -1 if it is gone, or is none. */
static int open_exported(void *raw, int type) {
    const struct fabric *fabric = raw;
    if (type == BY_DESCRIPTOR)
        return open_again(getpid(), (int)(intptr_t)raw);
    int fd = type == BY_FABRIC && fabric ? open_again(fabric->pid, fabric->fd) : -1;
    if (fd >= 0 && inode_of(fd) != fabric->inode) {
        close(fd);
        fd = -1;
    }
    return fd;
}

CUresult model_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *raw, int type) {
    NEED_CONTEXT(context);
    struct stat status;
    int fd = open_exported(raw, type);
    if (!out || fd < 0 || fstat(fd, &status) != 0 || status.st_size <= 0) {
        if (fd >= 0)
            close(fd);
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUmemAllocationProp props = {
        .type = 1, .handle_types = type, .location = {LOCATION_DEVICE, context->device->ordinal}};
    process_lock();
    struct physical *own = blocks;
    while (own && own->inode != status.st_ino)
        own = own->next;
    CUresult result = CUDA_SUCCESS;
    if (own) {
        own->handles++;
        list_elsewhere(own, false);
        *out = (uintptr_t)own;
        close(fd);
    } else {
        result = add(&props, (size_t)status.st_size, fd, true, context->device, out);
        if (result == CUDA_SUCCESS)
            device_shares(context->device, status.st_size);
    }
    process_unlock();
    return result;
}
