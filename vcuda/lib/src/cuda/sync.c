/* Where the program waits: what it has launched by then is measured up to here, and not the wait's aftermath.
 *
 * A pool gives back what was freed, down to its threshold, when the program next synchronises: then its charge falls
 * too, so that the container's other processes can have it. Without frees since, this costs one load. */
#include "cuda/pool_account.h"
#include "cuda/stream_meter.h"
#include "cuda/throttle.h"
#include "interposer.h"

static CUresult after(CUresult result) {
    pool_account_synchronised();
    return result;
}

static void before(CUstream stream, bool per_thread) {
    throttle_count();
    stream_meter_flush(stream, per_thread);
}

static void before_context(void) {
    throttle_count();
    stream_meter_flush_context();
}

CUresult hook_cuCtxSynchronize(void) {
    before_context();
    return after(real.cuCtxSynchronize());
}

CUresult hook_cuCtxSynchronize_v2(CUcontext context) {
    before_context();
    return after(real.cuCtxSynchronize_v2(context));
}

CUresult hook_cuStreamSynchronize(CUstream stream) {
    before(stream, false);
    return after(real.cuStreamSynchronize(stream));
}

CUresult hook_cuStreamSynchronize_ptsz(CUstream stream) {
    before(stream, true);
    return after(real.cuStreamSynchronize_ptsz(stream));
}

CUresult hook_cuEventSynchronize(CUevent event) {
    throttle_count();
    return after(real.cuEventSynchronize(event));
}
