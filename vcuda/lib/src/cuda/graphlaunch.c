/* Launching a graph: its time is paid for and its memory reserved first. */
#include "cuda/graphmem.h"
#include "cuda/throttle.h"
#include "interposer.h"

static CUresult launch(CUgraphExec exec, CUstream stream, bool per_thread, CUresult (*call)(CUgraphExec, CUstream)) {
    struct throttled_work work;
    struct graph_launch memory;
    bool throttled = throttle_may_wait() && throttle_begin(&work, stream, per_thread, exec, 0);
    CUresult result = graphmem_begin(&memory, exec, stream, per_thread);
    if (result == CUDA_SUCCESS) {
        result = call(exec, stream);
        graphmem_end(&memory, result);
    }
    if (throttled)
        throttle_end(&work, result);
    return result;
}

CUresult hook_cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    return launch(exec, stream, false, real.cuGraphLaunch);
}

CUresult hook_cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
    return launch(exec, stream, true, real.cuGraphLaunch_ptsz);
}
