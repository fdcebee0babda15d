/* Every way to launch a kernel. Graphs are launched in graphlaunch.c. */
#include "cuda/throttle.h"
#include "interposer.h"

#define BLOCKS(x, y, z) ((uint64_t)(x) * (y) * (z))

/* Entered only where a limit may be in force: elsewhere LAUNCH of interposer.c goes past it. */
#define LAUNCH(name, parameters, arguments, on, per_thread, what, size)                                                \
    CUresult hook_##name parameters {                                                                                  \
        struct throttled_work work;                                                                                    \
        if (!throttle_may_wait() || !throttle_begin(&work, on, per_thread, what, size))                                \
            return real.name arguments;                                                                                \
        CUresult result = real.name arguments;                                                                         \
        throttle_end(&work, result);                                                                                   \
        return result;                                                                                                 \
    }

#define SHAPE                                                                                                          \
    unsigned int x, unsigned int y, unsigned int z, unsigned int block_x, unsigned int block_y, unsigned int block_z,  \
        unsigned int shared

LAUNCH(cuLaunchKernel, (CUfunction function, SHAPE, CUstream stream, void **params, void **extra),
       (function, x, y, z, block_x, block_y, block_z, shared, stream, params, extra), stream, false, function,
       BLOCKS(x, y, z))

LAUNCH(cuLaunchKernel_ptsz, (CUfunction function, SHAPE, CUstream stream, void **params, void **extra),
       (function, x, y, z, block_x, block_y, block_z, shared, stream, params, extra), stream, true, function,
       BLOCKS(x, y, z))

LAUNCH(cuLaunchCooperativeKernel, (CUfunction function, SHAPE, CUstream stream, void **params),
       (function, x, y, z, block_x, block_y, block_z, shared, stream, params), stream, false, function, BLOCKS(x, y, z))

LAUNCH(cuLaunchCooperativeKernel_ptsz, (CUfunction function, SHAPE, CUstream stream, void **params),
       (function, x, y, z, block_x, block_y, block_z, shared, stream, params), stream, true, function, BLOCKS(x, y, z))

/* Without a configuration there is nothing to hold back: the driver says what it thinks of that. */
#define EX_STREAM (config ? config->stream : NULL)
#define EX_BLOCKS (config ? BLOCKS(config->grid[0], config->grid[1], config->grid[2]) : 0)

LAUNCH(cuLaunchKernelEx, (const CUlaunchConfig *config, CUfunction function, void **params, void **extra),
       (config, function, params, extra), EX_STREAM, false, function, EX_BLOCKS)

LAUNCH(cuLaunchKernelEx_ptsz, (const CUlaunchConfig *config, CUfunction function, void **params, void **extra),
       (config, function, params, extra), EX_STREAM, true, function, EX_BLOCKS)

/* The launch interface of CUDA 3. */
LAUNCH(cuLaunch, (CUfunction function), (function), NULL, false, function, 1)

LAUNCH(cuLaunchGrid, (CUfunction function, int width, int height), (function, width, height), NULL, false, function,
       BLOCKS((unsigned int)width, (unsigned int)height, 1))

LAUNCH(cuLaunchGridAsync, (CUfunction function, int width, int height, CUstream stream),
       (function, width, height, stream), stream, false, function, BLOCKS((unsigned int)width, (unsigned int)height, 1))

/* One launch on several cards: each pays its own. */
CUresult hook_cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count, unsigned int flags) {
    enum { MOST = 64 };
    struct throttled_work work[MOST];
    bool ours[MOST] = {false};
    unsigned int known = !list ? 0 : count < MOST ? count : MOST;
    for (unsigned int i = 0; i < known; i++)
        ours[i] = throttle_may_wait() && throttle_begin(&work[i], list[i].stream, false, list[i].function,
                                                        BLOCKS(list[i].grid[0], list[i].grid[1], list[i].grid[2]));
    CUresult result = real.cuLaunchCooperativeKernelMultiDevice(list, count, flags);
    for (unsigned int i = 0; i < known; i++)
        if (ours[i])
            throttle_end(&work[i], result);
    return result;
}
