/* Green contexts: a name for the primary context and a part of its processors. Memory, streams and modules of one are
 * the primary context's, which it keeps alive. The part is not modelled. */
#include <stdlib.h>

#include "process.h"

CUresult model_cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device);
CUresult model_cuDevicePrimaryCtxRelease_v2(CUdevice device);

#define DEFAULT_STREAM 1U /* must be asked for */

CUresult model_cuGreenCtxCreate(CUgreenCtx *out, CUdevResourceDesc resources, CUdevice device, unsigned int flags) {
    CUcontext primary = NULL;
    if (!out || !resources || flags != DEFAULT_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = model_cuDevicePrimaryCtxRetain(&primary, device);
    if (result != CUDA_SUCCESS)
        return result;
    struct context *green = calloc(1, sizeof *green);
    if (!green) {
        model_cuDevicePrimaryCtxRelease_v2(device);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    process_lock();
    *green = (struct context){.device = primary->device, .id = ++process.next_id, .alive = 1, .primary = primary};
    process_unlock();
    *out = green;
    return CUDA_SUCCESS;
}

CUresult model_cuCtxFromGreenCtx(CUcontext *out, CUgreenCtx green) {
    if (!out || !green || !green->alive)
        return CUDA_ERROR_INVALID_CONTEXT;
    *out = green;
    return CUDA_SUCCESS;
}

/* What it was stays allocated, because threads may have it as current. */
CUresult model_cuGreenCtxDestroy(CUgreenCtx green) {
    if (!green || !green->alive)
        return CUDA_ERROR_INVALID_CONTEXT;
    __atomic_store_n(&green->alive, 0, __ATOMIC_RELEASE);
    return model_cuDevicePrimaryCtxRelease_v2(green->device->ordinal);
}

CUresult model_cuStreamCreateWithPriority(CUstream *out, unsigned int flags, int priority);
CUresult model_cuCtxPushCurrent_v2(CUcontext context);
CUresult model_cuCtxPopCurrent_v2(CUcontext *out);
CUresult model_cuGreenCtxStreamCreate(CUstream *out, CUgreenCtx green, unsigned int flags, int priority) {
    CUcontext popped;
    if (!green)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = model_cuCtxPushCurrent_v2(green);
    if (result != CUDA_SUCCESS)
        return result;
    result = model_cuStreamCreateWithPriority(out, flags, priority);
    model_cuCtxPopCurrent_v2(&popped);
    return result;
}
