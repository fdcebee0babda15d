/* A pool gives back what was freed, down to its threshold, when the program next synchronises: then its charge falls
 * too, so that the container's other processes can have it. Without frees since, this costs one load. */
#include "cuda/grow.h"
#include "front.h"

static CUresult after(CUresult result) {
    grow_synchronised();
    return result;
}

CUresult hook_cuCtxSynchronize(void) {
    return after(real.cuCtxSynchronize());
}

CUresult hook_cuCtxSynchronize_v2(CUcontext context) {
    return after(real.cuCtxSynchronize_v2(context));
}

CUresult hook_cuStreamSynchronize(CUstream stream) {
    return after(real.cuStreamSynchronize(stream));
}

CUresult hook_cuStreamSynchronize_ptsz(CUstream stream) {
    return after(real.cuStreamSynchronize_ptsz(stream));
}

CUresult hook_cuEventSynchronize(CUevent event) {
    return after(real.cuEventSynchronize(event));
}
