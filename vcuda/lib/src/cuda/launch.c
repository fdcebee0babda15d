/* One launch of kernels on several cards: each pays its own. Other launches are in hooks.def. */
#include "cuda/local_memory.h"
#include "cuda/throttle.h"
#include "interposer.h"

CUresult hook_cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count, unsigned int flags) {
    enum { MOST = 64 };
    struct throttled_work work[MOST];
    bool ours[MOST] = {false};
    unsigned int known = !list ? 0 : count < MOST ? count : MOST;
    CUresult denied = CUDA_SUCCESS;
    for (unsigned int i = 0; list && i < count && denied == CUDA_SUCCESS; i++)
        if (local_may_grow(list[i].function))
            denied = local_launch(list[i].function, list[i].stream, false);
    if (denied != CUDA_SUCCESS)
        return denied;
    for (unsigned int i = 0; i < known; i++)
        ours[i] = throttle_may_wait() && throttle_begin(&work[i], list[i].stream, false, list[i].function,
                                                        (uint64_t)list[i].grid[0] * list[i].grid[1] * list[i].grid[2]);
    CUresult result = real.cuLaunchCooperativeKernelMultiDevice(list, count, flags);
    for (unsigned int i = 0; i < known; i++)
        if (ours[i])
            throttle_end(&work[i], result);
    return result;
}
