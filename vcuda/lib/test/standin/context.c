/* Questions about and settings of a context. */
#include "process.h"

CUresult model_cuCtxGetDevice(CUdevice *out) {
    NEED_CONTEXT(context);
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = context->device->ordinal;
    return CUDA_SUCCESS;
}
CUresult model_cuCtxGetDevice_v2(CUdevice *out, CUcontext of) {
    struct context *context = of ? of : context_current();
    if (!context || !context->alive)
        return CUDA_ERROR_INVALID_CONTEXT;
    *out = context->device->ordinal;
    return CUDA_SUCCESS;
}
CUresult model_cuCtxGetFlags(unsigned int *flags) {
    NEED_CONTEXT(context);
    if (!flags)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = context->flags;
    return CUDA_SUCCESS;
}
CUresult model_cuCtxSetFlags(unsigned int flags) {
    NEED_CONTEXT(context);
    context->flags = flags;
    return CUDA_SUCCESS;
}
CUresult model_cuCtxGetId(CUcontext of, unsigned long long *id) {
    struct context *context = of ? of : context_current();
    if (!context || !context->alive)
        return CUDA_ERROR_INVALID_CONTEXT;
    *id = context->id;
    return CUDA_SUCCESS;
}
CUresult model_cuCtxGetApiVersion(CUcontext of, unsigned int *version) {
    struct context *context = of ? of : context_current();
    if (!context || !context->alive)
        return CUDA_ERROR_INVALID_CONTEXT;
    *version = context->version;
    return CUDA_SUCCESS;
}
CUresult model_cuCtxSynchronize(void) {
    NEED_CONTEXT(context);
    if (capture_any())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    exec_device_wait(context->device);
    return CUDA_SUCCESS;
}
CUresult model_cuCtxSynchronize_v2(CUcontext of) {
    struct context *context = of ? of : context_current();
    if (!context || !context->alive)
        return CUDA_ERROR_INVALID_CONTEXT;
    exec_device_wait(context->device);
    return CUDA_SUCCESS;
}

/* Kernels' heap (limit 2) and what they print (limit 1) take memory when code that uses them is loaded, or runs. */
CUresult model_cuCtxSetLimit(int limit, size_t value) {
    NEED_CONTEXT(context);
    if (limit < 0 || limit >= 16)
        return CUDA_ERROR_INVALID_VALUE;
    if (!context_lock(context))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    bool fits = limit != 0 || context_threads(context, (int64_t)value, context->local_bytes);
    if (fits)
        context->limit[limit] = (int64_t)value;
    process_unlock();
    return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult model_cuCtxGetLimit(size_t *value, int limit) {
    NEED_CONTEXT(context);
    if (!value || limit < 0 || limit >= 16)
        return CUDA_ERROR_INVALID_VALUE;
    *value = (size_t)context->limit[limit];
    return CUDA_SUCCESS;
}
CUresult model_cuCtxGetCacheConfig(int *config) {
    NEED_CONTEXT(context);
    *config = context->cache_config;
    return CUDA_SUCCESS;
}
CUresult model_cuCtxSetCacheConfig(int config) {
    NEED_CONTEXT(context);
    context->cache_config = config;
    return CUDA_SUCCESS;
}
CUresult model_cuCtxGetSharedMemConfig(int *config) {
    NEED_CONTEXT(context);
    *config = 0;
    return CUDA_SUCCESS;
}
CUresult model_cuCtxSetSharedMemConfig(int config) {
    NEED_CONTEXT(context);
    (void)config;
    return CUDA_SUCCESS;
}
CUresult model_cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    NEED_CONTEXT(context);
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return CUDA_SUCCESS;
}
CUresult model_cuCtxResetPersistingL2Cache(void) {
    NEED_CONTEXT(context);
    return CUDA_SUCCESS;
}
CUresult model_cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
    NEED_CONTEXT(context);
    if (!peer || !peer->alive || flags || peer->device == context->device)
        return CUDA_ERROR_INVALID_VALUE;
    uint32_t bit = 1U << peer->device->ordinal;
    if (context->peers & bit)
        return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    context->peers |= bit;
    return CUDA_SUCCESS;
}
CUresult model_cuCtxDisablePeerAccess(CUcontext peer) {
    NEED_CONTEXT(context);
    if (!peer || !peer->alive)
        return CUDA_ERROR_INVALID_CONTEXT;
    uint32_t bit = 1U << peer->device->ordinal;
    if (!(context->peers & bit))
        return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    context->peers &= ~bit;
    return CUDA_SUCCESS;
}
