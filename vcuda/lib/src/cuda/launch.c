/* Every way to launch a kernel. Graphs are launched in graphlaunch.c. */
#include "cuda/submit.h"
#include "front.h"

#define BLOCKS(x, y, z) ((uint64_t)(x) * (y) * (z))

#define SUBMIT(stream, per_thread, what, size, call)                                                                   \
    struct work work;                                                                                                  \
    if (!work_may_wait() || !work_begin(&work, stream, per_thread, what, size))                                        \
        return call;                                                                                                   \
    CUresult result = call;                                                                                            \
    work_end(&work, result);                                                                                           \
    return result

CUresult hook_cuLaunchKernel(CUfunction function, unsigned int x, unsigned int y, unsigned int z, unsigned int block_x,
                             unsigned int block_y, unsigned int block_z, unsigned int shared, CUstream stream,
                             void **params, void **extra) {
    SUBMIT(stream, false, function, BLOCKS(x, y, z),
           real.cuLaunchKernel(function, x, y, z, block_x, block_y, block_z, shared, stream, params, extra));
}

CUresult hook_cuLaunchKernel_ptsz(CUfunction function, unsigned int x, unsigned int y, unsigned int z,
                                  unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,
                                  CUstream stream, void **params, void **extra) {
    SUBMIT(stream, true, function, BLOCKS(x, y, z),
           real.cuLaunchKernel_ptsz(function, x, y, z, block_x, block_y, block_z, shared, stream, params, extra));
}

CUresult hook_cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params, void **extra) {
    if (!config)
        return real.cuLaunchKernelEx(config, function, params, extra);
    SUBMIT(config->stream, false, function, BLOCKS(config->grid[0], config->grid[1], config->grid[2]),
           real.cuLaunchKernelEx(config, function, params, extra));
}

CUresult hook_cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **params, void **extra) {
    if (!config)
        return real.cuLaunchKernelEx_ptsz(config, function, params, extra);
    SUBMIT(config->stream, true, function, BLOCKS(config->grid[0], config->grid[1], config->grid[2]),
           real.cuLaunchKernelEx_ptsz(config, function, params, extra));
}

CUresult hook_cuLaunchCooperativeKernel(CUfunction function, unsigned int x, unsigned int y, unsigned int z,
                                        unsigned int block_x, unsigned int block_y, unsigned int block_z,
                                        unsigned int shared, CUstream stream, void **params) {
    SUBMIT(stream, false, function, BLOCKS(x, y, z),
           real.cuLaunchCooperativeKernel(function, x, y, z, block_x, block_y, block_z, shared, stream, params));
}

CUresult hook_cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned int x, unsigned int y, unsigned int z,
                                             unsigned int block_x, unsigned int block_y, unsigned int block_z,
                                             unsigned int shared, CUstream stream, void **params) {
    SUBMIT(stream, true, function, BLOCKS(x, y, z),
           real.cuLaunchCooperativeKernel_ptsz(function, x, y, z, block_x, block_y, block_z, shared, stream, params));
}

/* One launch on several cards: each pays its own. */
CUresult hook_cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count, unsigned int flags) {
    enum { MOST = 64 };
    struct work work[MOST];
    bool ours[MOST] = {false};
    unsigned int known = !list ? 0 : count < MOST ? count : MOST;
    for (unsigned int i = 0; i < known; i++)
        ours[i] = work_may_wait() && work_begin(&work[i], list[i].stream, false, list[i].function,
                                                BLOCKS(list[i].grid[0], list[i].grid[1], list[i].grid[2]));
    CUresult result = real.cuLaunchCooperativeKernelMultiDevice(list, count, flags);
    for (unsigned int i = 0; i < known; i++)
        if (ours[i])
            work_end(&work[i], result);
    return result;
}

/* The launch interface of CUDA 3. */
CUresult hook_cuLaunch(CUfunction function) {
    SUBMIT(NULL, false, function, BLOCKS(1, 1, 1), real.cuLaunch(function));
}

CUresult hook_cuLaunchGrid(CUfunction function, int width, int height) {
    SUBMIT(NULL, false, function, BLOCKS((unsigned int)width, (unsigned int)height, 1),
           real.cuLaunchGrid(function, width, height));
}

CUresult hook_cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream) {
    SUBMIT(stream, false, function, BLOCKS((unsigned int)width, (unsigned int)height, 1),
           real.cuLaunchGridAsync(function, width, height, stream));
}
