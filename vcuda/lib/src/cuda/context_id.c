#include "cuda/context_id.h"

#include "interposer.h"

uint64_t context_id_of(CUcontext context) {
    unsigned long long id = 0;
    if (!context)
        return 0;
    if (!real_has(cuCtxGetId))
        return (uint64_t)(uintptr_t)context;
    return real.cuCtxGetId(context, &id) == CUDA_SUCCESS ? id : 0;
}
