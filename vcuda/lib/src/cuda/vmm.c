/* Virtual memory management: physical blocks apart from addresses.
 *
 * A block lives while there is a handle to it, a mapping of it or a binding to a multicast object, and is charged for
 * that long, to the card that its properties name: no context is needed. Address space is free; memory of the host is
 * not counted; a block imported from another process stays charged to the process that made it. What was exported may
 * be held elsewhere when nothing here holds it any more: exported.c.
 */
#include "cuda/account.h"
#include "cuda/allocation_table.h"
#include "cuda/block.h"
#include "cuda/claim.h"
#include "cuda/context_registry.h"
#include "cuda/device_map.h"
#include "cuda/exported.h"
#include "cuda/imported.h"
#include "interposer.h"

CUresult hook_cuMemCreate(CUmemGenericAllocationHandle *out, size_t bytes, const CUmemAllocationProp *prop,
                          unsigned long long flags) {
    bool refused;
    struct claim claim = {.where = {.card = CARD_NONE}};
    CUmemGenericAllocationHandle handle = 0;
    if (prop && account_open(&refused)) {
        CUresult denied = claim_on(&claim, card_of_location(prop->location), granules(bytes));
        if (denied != CUDA_SUCCESS)
            return denied;
    } else if (prop && refused) {
        return CUDA_ERROR_SYSTEM_NOT_READY;
    }
    CUresult result = real.cuMemCreate(out ? &handle : NULL, bytes, prop, flags);
    if (result != CUDA_SUCCESS) {
        claim_undo(&claim);
        return result;
    }
    if (claim_counts(&claim)) {
        struct allocation old, block = {.key = handle,
                                        .bytes = claim.bytes,
                                        .owner = exported_name(),
                                        .count = 1,
                                        .card = (int8_t)claim.where.card,
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

CUresult hook_cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                       unsigned long long flags) {
    bool known = block_hold(handle);
    CUresult result = real.cuMemMap(at, bytes, offset, handle, flags);
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
