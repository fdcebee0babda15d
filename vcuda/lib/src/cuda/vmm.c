/* Virtual memory management: physical blocks apart from addresses.
 *
 * A block lives while there is a handle to it or a mapping of it, and is charged for that long, to the card that its
 * properties name: no context is needed. Address space is free; memory of the host is not counted; a block imported
 * from another process stays charged to the process that made it. What a block was exported as (a descriptor, a fabric
 * handle) holds its memory too, and where that has gone nobody can tell: once exported, a block stays charged until
 * the process ends.
 */
#include "cuda/vmm.h"

#include "cuda/account.h"
#include "cuda/allocation_table.h"
#include "cuda/claim.h"
#include "cuda/context_registry.h"
#include "cuda/device_map.h"
#include "interposer.h"

static void release(const struct allocation *block) {
    if (!block->owner)
        account_return(block->card, block->bytes);
}

bool vmm_add_reference(uint64_t handle) {
    struct allocation block;
    return handle && allocation_count(ALLOCATION_PHYSICAL, handle, 1, &block);
}

void vmm_release_reference(uint64_t handle) {
    struct allocation block;
    if (allocation_count(ALLOCATION_PHYSICAL, handle, -1, &block) && !block.count)
        release(&block);
}

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
                                        .count = 1,
                                        .card = (int8_t)claim.where.card,
                                        .kind = ALLOCATION_PHYSICAL};
        if (allocation_put(&block, &old) == ALLOCATION_REPLACED)
            release(&old);
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
        release(&block);
    if (known && result != CUDA_SUCCESS) {
        struct allocation again = block;
        again.count = 1;
        if (block.count ? !allocation_count(ALLOCATION_PHYSICAL, handle, 1, &block) : !allocation_put_new(&again))
            release(&again);
    }
    return result;
}

/* Held meanwhile, so that no other thread's release comes before it is known to be exported. */
CUresult hook_cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, int type,
                                           unsigned long long flags) {
    bool known = vmm_add_reference(handle);
    CUresult result = real.cuMemExportToShareableHandle(out, handle, type, flags);
    if (known && result == CUDA_SUCCESS)
        allocation_set_owner(ALLOCATION_PHYSICAL, handle, 1);
    if (known)
        vmm_release_reference(handle);
    return result;
}

CUresult hook_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address) {
    CUmemGenericAllocationHandle handle = 0;
    CUresult result = real.cuMemRetainAllocationHandle(out ? &handle : NULL, address);
    if (result == CUDA_SUCCESS) {
        vmm_add_reference(handle);
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
    bool known = vmm_add_reference(handle);
    CUresult result = real.cuMemMap(at, bytes, offset, handle, flags);
    if (!known)
        return result;
    if (result != CUDA_SUCCESS) {
        vmm_release_reference(handle);
        return result;
    }
    struct allocation old, mapping = {.key = at, .bytes = bytes, .owner = handle, .kind = ALLOCATION_MAPPING};
    __atomic_fetch_or(&bits, at | bytes, __ATOMIC_RELAXED);
    if (allocation_put(&mapping, &old) == ALLOCATION_REPLACED)
        vmm_release_reference(old.owner);
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
    account_return(mapping->card, mapping->count * GRANULE);
}

/* Set aside while the driver unmaps: another thread may map something else there before we are told. The block's
 * reference goes now too, because its handle may be used again as soon as its last one is gone; `count` says how many
 * granules that frees. */
static void set_aside(struct allocation *mapping) {
    struct allocation old, block;
    mapping->kind = ALLOCATION_LEAVING;
    mapping->count = 0;
    if (allocation_count(ALLOCATION_PHYSICAL, mapping->owner, -1, &block) && !block.count && !block.owner) {
        mapping->count = (uint32_t)(block.bytes / GRANULE);
        mapping->card = block.card;
    }
    if (allocation_put(mapping, &old) == ALLOCATION_REPLACED)
        let_go(&old);
}

static void put_back(struct allocation *mapping) {
    struct allocation old, block = {.key = mapping->owner,
                                    .bytes = mapping->count * GRANULE,
                                    .count = 1,
                                    .card = mapping->card,
                                    .kind = ALLOCATION_PHYSICAL};
    mapping->kind = ALLOCATION_MAPPING;
    if (mapping->count ? !allocation_put_new(&block)
                       : !allocation_count(ALLOCATION_PHYSICAL, mapping->owner, 1, &block))
        let_go(mapping);
    else if (allocation_put(mapping, &old) == ALLOCATION_REPLACED)
        vmm_release_reference(old.owner);
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

/* ---- multicast: a bound block outlives its handle, and an unbinding names none --------------------------------------
 */

CUresult hook_cuMulticastBindMem(CUmemGenericAllocationHandle object, size_t at, CUmemGenericAllocationHandle handle,
                                 size_t offset, size_t bytes, unsigned long long flags) {
    bool known = vmm_add_reference(handle);
    CUresult result = real.cuMulticastBindMem(object, at, handle, offset, bytes, flags);
    if (known && result != CUDA_SUCCESS)
        vmm_release_reference(handle);
    return result;
}

CUresult hook_cuMulticastBindMem_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t at,
                                    CUmemGenericAllocationHandle handle, size_t offset, size_t bytes,
                                    unsigned long long flags) {
    bool known = vmm_add_reference(handle);
    CUresult result = real.cuMulticastBindMem_v2(object, device, at, handle, offset, bytes, flags);
    if (known && result != CUDA_SUCCESS)
        vmm_release_reference(handle);
    return result;
}
