/* Multicast objects: memory is bound to a place of an object and device, and an unbinding names the place alone. A
 * binding holds its block as a mapping does, until it is undone or the object ends.
 */
#include "attachment.h"
#include "cuda/allocation_table.h"
#include "cuda/block.h"
#include "cuda/device_map.h"
#include "interposer.h"

static uint64_t mixed(uint64_t left, uint64_t right) {
    uint64_t word = (left ^ right) * UINT64_C(0x9e3779b97f4a7c15);
    return (word ^ word >> 32) * UINT64_C(0xd6e8feb86659fd93);
}

/* Three words in one: that two places get the same is less likely than a fault of the machine. */
static uint64_t place(uint64_t object, CUdevice device, uint64_t at) {
    return mixed(mixed(object, at), (uint64_t)(uint32_t)device + 1);
}

/* Of memory whose device the caller did not say. */
static CUdevice device_of(CUmemGenericAllocationHandle handle) {
    CUmemAllocationProp prop = {0};
    return real.cuMemGetAllocationPropertiesFromHandle(&prop, handle) == CUDA_SUCCESS ? prop.location.id : -1;
}

/* After the driver's answer, for a block that is held. */
static CUresult bound(CUresult result, bool known, uint64_t object, CUdevice device, uint64_t at, uint64_t handle) {
    struct allocation binding = {.key = place(object, device, at),
                                 .bytes = handle,
                                 .owner = object,
                                 .card = CARD_NONE,
                                 .kind = ALLOCATION_BINDING};
    struct allocation old;
    if (known && result != CUDA_SUCCESS)
        block_release(handle);
    else if (known && allocation_put(&binding, &old) == ALLOCATION_REPLACED)
        block_release(old.bytes);
    return result;
}

CUresult hook_cuMulticastCreate(CUmemGenericAllocationHandle *out, const void *prop) {
    CUresult result = real.cuMulticastCreate(out, prop);
    if (result == CUDA_SUCCESS && out && vcuda_attached() == VCUDA_ATTACHED)
        allocation_put_new(
            &(struct allocation){.key = *out, .count = 1, .card = CARD_NONE, .kind = ALLOCATION_PHYSICAL});
    return result;
}

CUresult hook_cuMulticastBindMem(CUmemGenericAllocationHandle object, size_t at, CUmemGenericAllocationHandle handle,
                                 size_t offset, size_t bytes, unsigned long long flags) {
    bool known = block_hold(handle);
    CUresult result = real.cuMulticastBindMem(object, at, handle, offset, bytes, flags);
    return bound(result, known, object, known ? device_of(handle) : -1, at, handle);
}

CUresult hook_cuMulticastBindMem_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t at,
                                    CUmemGenericAllocationHandle handle, size_t offset, size_t bytes,
                                    unsigned long long flags) {
    bool known = block_hold(handle);
    CUresult result = real.cuMulticastBindMem_v2(object, device, at, handle, offset, bytes, flags);
    return bound(result, known, object, device, at, handle);
}

/* The handle of what is mapped at an address, held; it is the driver's reference that goes at once. */
static bool held_at(CUdeviceptr address, CUmemGenericAllocationHandle *handle) {
    if (real.cuMemRetainAllocationHandle(handle, (void *)(uintptr_t)address) != CUDA_SUCCESS)
        return false;
    bool known = block_hold(*handle);
    real.cuMemRelease(*handle);
    return known;
}

CUresult hook_cuMulticastBindAddr(CUmemGenericAllocationHandle object, size_t at, CUdeviceptr address, size_t bytes,
                                  unsigned long long flags) {
    CUmemGenericAllocationHandle handle = 0;
    bool known = held_at(address, &handle);
    CUdevice device = known ? device_of(handle) : -1;
    return bound(real.cuMulticastBindAddr(object, at, address, bytes, flags), known, object, device, at, handle);
}

CUresult hook_cuMulticastBindAddr_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t at,
                                     CUdeviceptr address, size_t bytes, unsigned long long flags) {
    CUmemGenericAllocationHandle handle = 0;
    bool known = held_at(address, &handle);
    CUresult result = real.cuMulticastBindAddr_v2(object, device, at, address, bytes, flags);
    return bound(result, known, object, device, at, handle);
}

/* The binding goes before the call: from then on another thread may bind something else there. */
CUresult hook_cuMulticastUnbind(CUmemGenericAllocationHandle object, CUdevice device, size_t at, size_t bytes) {
    struct allocation binding, old;
    bool known = allocation_take(ALLOCATION_BINDING, place(object, device, at), &binding);
    CUresult result = real.cuMulticastUnbind(object, device, at, bytes);
    if (known && result == CUDA_SUCCESS)
        block_release(binding.bytes);
    else if (known && allocation_put(&binding, &old) == ALLOCATION_REPLACED)
        block_release(old.bytes);
    return result;
}
