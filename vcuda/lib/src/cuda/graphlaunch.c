/* Launching a graph: its memory is reserved first. */
#include "cuda/graphmem.h"
#include "front.h"

CUresult hook_cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    struct growth growth;
    CUresult result = graphmem_begin(&growth, exec);
    if (result != CUDA_SUCCESS)
        return result;
    result = real.cuGraphLaunch(exec, stream);
    graphmem_end(&growth);
    return result;
}

CUresult hook_cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
    struct growth growth;
    CUresult result = graphmem_begin(&growth, exec);
    if (result != CUDA_SUCCESS)
        return result;
    result = real.cuGraphLaunch_ptsz(exec, stream);
    graphmem_end(&growth);
    return result;
}
