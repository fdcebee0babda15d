/* Memory of other interfaces (Vulkan, OpenGL, a descriptor): nothing else has charged it to this container. */
#include "cuda/account.h"
#include "cuda/held.h"
#include "cuda/mem.h"
#include "front.h"

CUresult hook_cuImportExternalMemory(CUexternalMemory *out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc) {
    struct claim claim;
    CUresult result = claim_here(&claim, desc ? granules(desc->size) : 0);
    if (result != CUDA_SUCCESS)
        return result;
    result = real.cuImportExternalMemory(out, desc);
    if (result != CUDA_SUCCESS) {
        claim_undo(&claim);
    } else if (claim_counts(&claim) && out) {
        struct held old, item = {.key = (uint64_t)(uintptr_t)*out,
                                 .bytes = claim.bytes,
                                 .owner = claim.place.owner,
                                 .card = (int8_t)claim.place.card,
                                 .kind = HELD_EXTERNAL};
        if (held_put(&item, &old) == HELD_REPLACED)
            mem_discharge(&old);
    }
    return result;
}

CUresult hook_cuDestroyExternalMemory(CUexternalMemory memory) {
    struct held item, old;
    bool known = memory && held_take(HELD_EXTERNAL, (uint64_t)(uintptr_t)memory, &item);
    CUresult result = real.cuDestroyExternalMemory(memory);
    if (known && result == CUDA_SUCCESS)
        mem_discharge(&item);
    else if (known)
        held_put(&item, &old);
    return result;
}
