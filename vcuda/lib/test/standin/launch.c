/* Every way to submit a kernel, and occupancy. */
#include "process.h"

static CUresult launch_on(struct context *context, CUfunction function, const unsigned int grid[3],
                          const unsigned int block[3], CUstream handle, void **params) {
    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!grid[0] || !grid[1] || !grid[2] || !block[0] || !block[1] || !block[2] ||
        (uint64_t)block[0] * block[1] * block[2] > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    if (!function_load(function))
        return CUDA_ERROR_OUT_OF_MEMORY;
    process_lock();
    struct stream *stream = stream_of(context, handle);
    CUresult result = CUDA_SUCCESS;
    if (capturing(stream)) {
        CUgraphNodeParams node = {.type = NODE_KERNEL,
                                  .kernel = {.function = function,
                                             .grid = {grid[0], grid[1], grid[2]},
                                             .block = {block[0], block[1], block[2]},
                                             .params = params}};
        result = capture_add(stream, NODE_KERNEL, &node);
        process_unlock();
        return result;
    }
    struct device *device = stream->context->device;
    int64_t oldest = device->pending[device->launches % LAUNCH_QUEUE];
    process_unlock();
    if (oldest)
        exec_queue_wait(device);
    bool loaded = __atomic_exchange_n(&function->launched, true, __ATOMIC_RELAXED); /* by whichever thread */
    exec_call(config_read()->reach_ns + (loaded ? 0 : config_read()->load_ns));
    process_lock();
    bool fits = function_local(stream->context, function);
    int64_t pause = exec_is_idle(stream) ? config_read()->start_ns : config_read()->gap_ns;
    if (fits)
        exec_work(stream, pause + kernel_ns(function, params), kernel_alone(context, grid));
    process_unlock();
    exec_call(config_read()->launch_ns - config_read()->reach_ns);
    if (!fits)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return result;
}

CUresult model_cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                              unsigned int block_x, unsigned int block_y, unsigned int block_z,
                              unsigned int shared_bytes, CUstream stream, void **params, void **extra) {
    NEED_CONTEXT(context);
    (void)shared_bytes;
    (void)extra;
    return launch_on(context, function, (unsigned int[]){grid_x, grid_y, grid_z},
                     (unsigned int[]){block_x, block_y, block_z}, stream, params);
}
CUresult model_cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params, void **extra) {
    NEED_CONTEXT(context);
    (void)extra;
    if (!config)
        return CUDA_ERROR_INVALID_VALUE;
    return launch_on(context, function, config->grid, config->block, config->stream, params);
}
CUresult model_cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                         unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                         unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                         void **params) {
    NEED_CONTEXT(context);
    /* All blocks must be resident at once: two of 1024 threads a SM, more of smaller ones. */
    uint64_t blocks = (uint64_t)grid_x * grid_y * grid_z, threads = (uint64_t)block_x * block_y * block_z;
    uint64_t room = threads ? (uint64_t)context->device->hold.config->sms * (2048 / (threads > 64 ? threads : 64)) : 0;
    if (threads && threads <= 1024 && blocks > room)
        return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    return model_cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,
                                params, NULL);
}
CUresult model_cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count, unsigned int flags) {
    (void)flags;
    if (!list || !count)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int at = 0; at < count; at++) {
        if (!list[at].stream || list[at].stream == CU_STREAM_LEGACY || list[at].stream == CU_STREAM_PER_THREAD)
            return CUDA_ERROR_INVALID_VALUE;
        CUresult result = launch_on(list[at].stream->context, list[at].function, list[at].grid, list[at].block,
                                    list[at].stream, list[at].params);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}

/* The launch interface of CUDA 3: the block's shape is a property of the function. */
CUresult model_cuFuncSetBlockShape(CUfunction function, int x, int y, int z) {
    if (!function || x <= 0 || y <= 0 || z <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    function->block[0] = x;
    function->block[1] = y;
    function->block[2] = z;
    return CUDA_SUCCESS;
}
CUresult model_cuFuncSetSharedSize(CUfunction function, unsigned int bytes) {
    (void)bytes;
    return function ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult model_cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream) {
    NEED_CONTEXT(context);
    if (!function || width <= 0 || height <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    const int *shape = function->block;
    return launch_on(context, function, (unsigned int[]){(unsigned)width, (unsigned)height, 1},
                     (unsigned int[]){(unsigned)shape[0], (unsigned)shape[1], (unsigned)shape[2]}, stream, NULL);
}
CUresult model_cuLaunchGrid(CUfunction function, int width, int height) {
    return model_cuLaunchGridAsync(function, width, height, NULL);
}
CUresult model_cuLaunch(CUfunction function) {
    return model_cuLaunchGridAsync(function, 1, 1, NULL);
}

/* ---- occupancy: as if nothing but threads were scarce ------------------------------------------------------- */

CUresult model_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function, int block_size,
                                                                    size_t shared, unsigned int flags) {
    (void)shared;
    (void)flags;
    if (!blocks || !function || block_size <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    *blocks = block_size > 1024 ? 0 : 2048 / (block_size < 64 ? 64 : block_size);
    return CUDA_SUCCESS;
}
CUresult model_cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int block_size,
                                                           size_t shared) {
    return model_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size, shared, 0);
}
CUresult model_cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction function,
                                                         CUoccupancyB2DSize shared_of, size_t shared, int limit,
                                                         unsigned int flags) {
    NEED_CONTEXT(context);
    (void)shared_of;
    (void)shared;
    (void)flags;
    if (!grid || !block || !function)
        return CUDA_ERROR_INVALID_VALUE;
    *block = limit > 0 && limit < 1024 ? limit : 1024;
    *grid = context->device->hold.config->sms * (2048 / (*block < 64 ? 64 : *block));
    return CUDA_SUCCESS;
}
CUresult model_cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction function,
                                                CUoccupancyB2DSize shared_of, size_t shared, int limit) {
    return model_cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, function, shared_of, shared, limit, 0);
}
