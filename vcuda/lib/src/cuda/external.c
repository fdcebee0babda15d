/* Memory of other interfaces (Vulkan, OpenGL, a descriptor): nothing else has charged it to this container. */
#include "cuda/account.h"
#include "cuda/allocation_table.h"
#include "cuda/charge.h"
#include "cuda/context_registry.h"
#include "cuda/discharge.h"
#include "cuda/mem.h"
#include "interposer.h"

CUresult hook_cuImportExternalMemory(CUexternalMemory *out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc) {
    struct charge charge;
    CUresult result = charge_here(&charge, desc ? granules(desc->size) : 0);
    if (result != CUDA_SUCCESS)
        return result;
    result = real.cuImportExternalMemory(out, desc);
    if (result != CUDA_SUCCESS) {
        charge_undo(&charge);
    } else if (charge_counts(&charge) && out) {
        context_keep(&(struct allocation){.key = (uint64_t)(uintptr_t)*out,
                                          .bytes = charge.bytes,
                                          .owner = charge.where.owner,
                                          .card = (int8_t)charge.where.card,
                                          .kind = ALLOCATION_EXTERNAL},
                     charge.where.changes);
    }
    return result;
}

CUresult hook_cuDestroyExternalMemory(CUexternalMemory memory) {
    struct allocation item;
    bool known = memory && allocation_take(ALLOCATION_EXTERNAL, (uint64_t)(uintptr_t)memory, &item);
    CUresult result = real.cuDestroyExternalMemory(memory);
    if (known && result == CUDA_SUCCESS)
        allocation_discharge(&item);
    else if (known)
        context_keep(&item, CONTEXT_UNSEEN);
    return result;
}
