/* Virtual memory management: physical blocks apart from addresses.
 *
 * A block lives while there is a handle to it, a mapping of it or a binding to a multicast object, and is charged for
 * that long, to the card that its properties name: no context is needed. Address space is free; memory of the host is
 * not counted; a block imported from another process stays charged to the process that made it. What was exported may
 * be held elsewhere when nothing here holds it any more: exported.c.
 */
#include <stdlib.h>
#include <unistd.h>

#include "cuda/account.h"
#include "cuda/allocation_table.h"
#include "cuda/block.h"
#include "cuda/charge.h"
#include "cuda/context_registry.h"
#include "cuda/device_map.h"
#include "cuda/exported.h"
#include "cuda/imported.h"
#include "cuda/mem.h"
#include "interposer.h"

CUresult hook_cuMemCreate(CUmemGenericAllocationHandle *out, size_t bytes, const CUmemAllocationProp *prop,
                          unsigned long long flags) {
    bool refused;
    struct charge charge = {.where = {.card = CARD_NONE}};
    CUmemGenericAllocationHandle handle = 0;
    if (prop && account_open(&refused)) {
        CUresult denied = charge_on(&charge, card_of_location(prop->location), granules(bytes));
        if (denied != CUDA_SUCCESS)
            return denied;
    } else if (prop && refused) {
        return CUDA_ERROR_SYSTEM_NOT_READY;
    }
    CUresult result = real.cuMemCreate(out ? &handle : NULL, bytes, prop, flags);
    if (result != CUDA_SUCCESS) {
        charge_undo(&charge);
        return result;
    }
    if (charge_counts(&charge)) {
        struct allocation old, block = {.key = handle,
                                        .bytes = charge.bytes,
                                        .owner = exported_name(),
                                        .count = 1,
                                        .card = (int8_t)charge.where.card,
                                        .kind = ALLOCATION_PHYSICAL};
        if (allocation_put(&block, &old) == ALLOCATION_REPLACED)
            block_end(&old);
    }
    if (out)
        *out = handle;
    return result;
}

/* The reference goes before the call: from then on the driver may use the handle's number again. */
CUresult hook_cuMemRelease(CUmemGenericAllocationHandle handle) {
    struct allocation block;
    bool known = allocation_count(ALLOCATION_PHYSICAL, handle, -1, &block);
    CUresult result = real.cuMemRelease(handle);
    if (known && result == CUDA_SUCCESS && !block.count)
        block_end(&block);
    if (known && result != CUDA_SUCCESS) {
        struct allocation again = block;
        again.count = 1;
        if (block.count ? !allocation_count(ALLOCATION_PHYSICAL, handle, 1, &block) : !allocation_put_new(&again))
            block_end(&again);
    }
    return result;
}

/* Held meanwhile, so that no other thread's release comes before it is known to be exported. */
CUresult hook_cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, int type,
                                           unsigned long long flags) {
    struct allocation block;
    bool known = handle && allocation_count(ALLOCATION_PHYSICAL, handle, 1, &block);
    CUresult result = real.cuMemExportToShareableHandle(out, handle, type, flags);
    if (known && result == CUDA_SUCCESS && block.card == CARD_NONE)
        allocation_set_owner(ALLOCATION_PHYSICAL, handle, block.owner | BLOCK_WAS_EXPORTED);
    else if (known && result == CUDA_SUCCESS)
        exported_as(block.owner, type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? *(int *)out : -1);
    if (known)
        block_release(handle);
    return result;
}

/* One more handle of what this process has already, or a handle of another process's memory. */
CUresult hook_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *os_handle, int type) {
    CUmemGenericAllocationHandle handle = 0;
    bool refused, counted = account_open(&refused) && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    int held = counted ? imported_hold((int)(intptr_t)os_handle) : IMPORTED_NOTHING;
    if (held == IMPORTED_REFUSED)
        return CUDA_ERROR_OPERATING_SYSTEM; /* else its maker would no longer pay for it */
    CUresult result = real.cuMemImportFromShareableHandle(out ? &handle : NULL, os_handle, type);
    struct allocation import = {
        .key = handle, .owner = (uint64_t)(held + 1), .count = 1, .card = CARD_NONE, .kind = ALLOCATION_PHYSICAL};
    bool is_new = result == CUDA_SUCCESS && !block_hold(handle) && counted && allocation_put_new(&import);
    if (held >= 0 && !is_new)
        imported_unhold(held);
    if (result == CUDA_SUCCESS && out)
        *out = handle;
    return result;
}

CUresult hook_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address) {
    CUmemGenericAllocationHandle handle = 0;
    CUresult result = real.cuMemRetainAllocationHandle(out ? &handle : NULL, address);
    if (result == CUDA_SUCCESS) {
        block_hold(handle);
        if (out)
            *out = handle;
    }
    return result;
}

/* ---- mappings ---------------------------------------------------------------------------------------------------- */

/* The lowest bit of any address and size ever mapped: no mapping begins between two multiples of it. */
static uint64_t bits = GRANULE;

static uint64_t step(void) {
    uint64_t all = __atomic_load_n(&bits, __ATOMIC_RELAXED);
    return all & -all;
}

/* Mappings ever begun and done: who looks what is mapped, and asks the driver about it, must know of others. */
static uint64_t begun, done;

CUresult hook_cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                       unsigned long long flags) {
    bool known = block_hold(handle);
    __atomic_fetch_add(&begun, 1, __ATOMIC_SEQ_CST);
    CUresult result = real.cuMemMap(at, bytes, offset, handle, flags);
    __atomic_fetch_add(&done, 1, __ATOMIC_SEQ_CST);
    if (!known)
        return result;
    if (result != CUDA_SUCCESS) {
        block_release(handle);
        return result;
    }
    struct allocation old, mapping = {.key = at, .bytes = bytes, .owner = handle, .kind = ALLOCATION_MAPPING};
    __atomic_fetch_or(&bits, at | bytes, __ATOMIC_RELAXED);
    if (allocation_put(&mapping, &old) == ALLOCATION_REPLACED)
        block_release(old.owner);
    return result;
}

/* Call back for each mapping of the kind that begins in the range and ends in it. */
static void each_mapping(enum allocation_kind kind, uint64_t at, uint64_t bytes,
                         void (*each)(struct allocation *mapping)) {
    struct allocation mapping;
    uint64_t end = at + bytes < at ? UINT64_MAX : at + bytes;
    uint64_t stride = step();
    while (at < end) {
        if (allocation_get(kind, at, &mapping) && mapping.bytes <= end - at && allocation_take(kind, at, &mapping)) {
            at += mapping.bytes;
            each(&mapping);
        } else {
            at = at > UINT64_MAX - stride ? end : at + stride;
        }
    }
}

static void let_go(struct allocation *mapping) {
    struct allocation block;
    if (allocation_take(ALLOCATION_ENDING, mapping->key, &block)) {
        block.key = mapping->owner;
        block_end(&block);
    }
}

/* Set aside while the driver unmaps: another thread may map something else there before we are told. The block's
 * reference goes now too, because its handle may be used again as soon as its last one is gone: if this is
 * the last one, the block is set aside too. */
static void set_aside(struct allocation *mapping) {
    struct allocation old, block;
    mapping->kind = ALLOCATION_LEAVING;
    if (allocation_count(ALLOCATION_PHYSICAL, mapping->owner, -1, &block) && !block.count) {
        block.kind = ALLOCATION_ENDING;
        block.key = mapping->key;
        if (allocation_put(&block, &old) == ALLOCATION_REPLACED)
            block_end(&old);
    }
    if (allocation_put(mapping, &old) == ALLOCATION_REPLACED)
        let_go(&old);
}

static void put_back(struct allocation *mapping) {
    struct allocation old, block;
    bool was_last = allocation_take(ALLOCATION_ENDING, mapping->key, &block);
    mapping->kind = ALLOCATION_MAPPING;
    block.kind = ALLOCATION_PHYSICAL;
    block.key = mapping->owner;
    block.count = 1;
    if (was_last && !allocation_put_new(&block))
        block_end(&block);
    else if (!was_last && !block_hold(mapping->owner))
        return;
    else if (allocation_put(mapping, &old) == ALLOCATION_REPLACED)
        block_release(old.owner);
}

/* No process has mapped more than this at once; a wilder range is the driver's to refuse. */
#define WIDEST (UINT64_C(1) << 47)

CUresult hook_cuMemUnmap(CUdeviceptr at, size_t bytes) {
    bool sane = bytes <= WIDEST && at % step() == 0;
    if (sane)
        each_mapping(ALLOCATION_MAPPING, at, bytes, set_aside);
    CUresult result = real.cuMemUnmap(at, bytes);
    if (sane)
        each_mapping(ALLOCATION_LEAVING, at, bytes, result == CUDA_SUCCESS ? let_go : put_back);
    return result;
}

/* ---- dma-bufs, for network cards and other drivers ---------------------------------------------------------------
 *
 * Its descriptor keeps what it was made of, as a whole: each block that the range touches, or the linear allocation
 * that it lies in. Of other memory (granules that small allocations share, pools) nobody here knows what it keeps: the
 * allocation is charged once more while the dma-buf is there. */

#define DMA_BUF 1 /* CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD: the only type there is */

struct making {
    CUmemGenericAllocationHandle *block; /* held */
    size_t blocks, room;
    uint64_t name;   /* of linear or other memory */
    uint64_t linear; /* the same of linear memory alone, else 0 */
    CUdeviceptr base;
    uint64_t done;
    bool is_mapped;
    struct charge charge; /* of other memory */
};

static bool add_block(struct making *making, CUmemGenericAllocationHandle handle) {
    if (making->blocks == making->room) {
        size_t room = making->room ? 2 * making->room : 8;
        CUmemGenericAllocationHandle *more = realloc(making->block, room * sizeof *more);
        if (!more)
            return false;
        making->block = more;
        making->room = room;
    }
    making->block[making->blocks++] = handle;
    return true;
}

/* Hold the blocks that are mapped in the range; false without memory for them. */
static bool hold_blocks(struct making *making, CUdeviceptr at, uint64_t bytes) {
    CUmemGenericAllocationHandle last = 0, handle;
    uint64_t end = at + bytes < at ? UINT64_MAX : at + bytes;
    while (at < end && real.cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)at) == CUDA_SUCCESS) {
        bool known = handle != last && block_hold(handle);
        real.cuMemRelease(handle);
        making->is_mapped = true;
        if (known && !add_block(making, handle)) {
            block_release(handle);
            return false;
        }
        last = handle;
        if (at > UINT64_MAX - GRANULE)
            break;
        at = (at / GRANULE + 1) * GRANULE;
    }
    return true;
}

/* Before the driver is asked: what may be let go of meanwhile is known to be exported. */
static CUresult begin(struct making *making, CUdeviceptr at, uint64_t bytes) {
    bool failed;
    size_t whole;
    *making =
        (struct making){.done = __atomic_load_n(&done, __ATOMIC_SEQ_CST), .charge = {.where = {.card = CARD_NONE}}};
    if (!hold_blocks(making, at, bytes))
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (making->is_mapped || real.cuMemGetAddressRange_v2(&making->base, &whole, at) != CUDA_SUCCESS)
        return CUDA_SUCCESS; /* that, or no memory: the driver will say so */
    making->name = making->linear = mem_export(making->base, &failed);
    if (failed)
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (making->linear || !mem_is_exported(making->base, 0))
        return CUDA_SUCCESS;
    making->name = exported_name();
    return charge_here(&making->charge, granules(making->base % GRANULE + whole));
}

/* Was the driver asked about the same memory, of a kind that can be counted? Else another thread has put something else
 * there, or is about to tell the table. */
static bool is_same(const struct making *making) {
    if (making->is_mapped)
        return __atomic_load_n(&begun, __ATOMIC_SEQ_CST) == making->done;
    return making->name && mem_is_exported(making->base, making->linear);
}

/* This memory is in the dma-buf that is watched by this number; false without memory to note it. */
static bool note(uint64_t name, uint64_t number) {
    if (number)
        return exported_as_watched(name, number);
    exported_as(name, -1);
    return true;
}

static bool note_block(CUmemGenericAllocationHandle handle, uint64_t number) {
    struct allocation block;
    if (!allocation_get(ALLOCATION_PHYSICAL, handle, &block))
        return true;
    if (block.card != CARD_NONE)
        return note(block.owner, number);
    int import = (int)(block.owner & INT32_MAX) - 1;
    int held = import < 0 ? IMPORTED_NOTHING : imported_hold(import);
    if (held < 0)
        return held == IMPORTED_NOTHING; /* its maker asks the host */
    uint64_t name = exported_name();
    if (note(name, number) && exported_range(name, CARD_NONE, 0, 0, held))
        return true;
    imported_unhold(held);
    return false;
}

static bool note_all(struct making *making, uint64_t number) {
    bool noted = !making->name || note(making->name, number);
    for (size_t i = 0; i < making->blocks; i++)
        noted &= note_block(making->block[i], number);
    if (making->name && !making->linear && charge_counts(&making->charge)) {
        bool kept = exported_range(making->name, making->charge.where.card, making->charge.bytes, 0, IMPORTED_NOTHING);
        if (kept)
            making->charge.bytes = 0; /* given back there */
        noted &= kept;
    }
    return noted;
}

static void end(struct making *making) {
    charge_undo(&making->charge);
    if (making->linear)
        exported_pin((uint32_t)making->linear, -1);
    for (size_t i = 0; i < making->blocks; i++)
        block_release(making->block[i]);
    free(making->block);
}

static CUresult make(void *out, CUdeviceptr at, size_t bytes, int type, unsigned long long flags, bool *again) {
    struct making making;
    CUresult result = begin(&making, at, bytes);
    if (result == CUDA_SUCCESS)
        result = real.cuMemGetHandleForAddressRange(out, at, bytes, type, flags);
    if (result == CUDA_SUCCESS) {
        bool is_descriptor = type == DMA_BUF;
        uint64_t number = is_descriptor ? exported_watch(*(int *)out) : 0;
        bool noted = note_all(&making, number);
        *again = !is_same(&making);
        if (is_descriptor && (!number || !noted || *again)) {
            close(*(int *)out);
            result = CUDA_ERROR_OPERATING_SYSTEM; /* else nobody would pay for what it keeps */
        }
    }
    end(&making);
    return result;
}

#define TRIES 100

CUresult hook_cuMemGetHandleForAddressRange(void *out, CUdeviceptr at, size_t bytes, int type,
                                            unsigned long long flags) {
    bool refused, again = true;
    if (!account_open(&refused))
        return refused ? CUDA_ERROR_SYSTEM_NOT_READY : real.cuMemGetHandleForAddressRange(out, at, bytes, type, flags);
    CUresult result = CUDA_ERROR_OPERATING_SYSTEM;
    for (int tries = 0; again && tries < TRIES; tries++) {
        again = false;
        result = make(out, at, bytes, type, flags, &again);
    }
    return result;
}
