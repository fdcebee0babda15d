/* Where the program waits: what it has launched by then is measured up to here, and not the wait's aftermath.
 *
 * A pool gives back what was freed, down to its threshold, when the program next synchronises: then its charge falls
 * too, so that the container's other processes can have it. Without frees since, this costs one load. */
#include "cuda/context_registry.h"
#include "cuda/graph_pool.h"
#include "cuda/pool_account.h"
#include "cuda/settle.h"
#include "cuda/stream_meter.h"
#include "cuda/throttle.h"
#include "interposer.h"

/* Where best-effort containers wait for this one, they hear at once that its work has ended. */
static CUresult after(CUresult result) {
    pool_account_synchronised();
    if (__builtin_expect(__atomic_load_n(&meter_tells, __ATOMIC_RELAXED) != 0, 0))
        settle_pass();
    return result;
}

/* Graphs of this stream that took memory have ended. */
static CUresult after_stream(CUresult result, CUstream stream, bool per_thread) {
    struct current_context where;
    if (result == CUDA_SUCCESS && graph_pools_exist() &&
        graph_pools_synchronised(graph_stream_of(stream, context_current(&where) ? where.owner : 0, per_thread)))
        pool_account_touched();
    return after(result);
}

/* The same of every stream of a context; 0: the current one. */
static CUresult after_context(CUresult result, uint64_t context) {
    struct current_context where;
    if (result == CUDA_SUCCESS && graph_pools_exist() &&
        graph_pools_synchronised_context(context                   ? context
                                         : context_current(&where) ? where.owner
                                                                   : 0))
        pool_account_touched();
    return after(result);
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
    return after_context(real.cuCtxSynchronize(), 0);
}

CUresult hook_cuCtxSynchronize_v2(CUcontext context) {
    before_context();
    return after_context(real.cuCtxSynchronize_v2(context), context_id_of(context));
}

CUresult hook_cuStreamSynchronize(CUstream stream) {
    before(stream, false);
    return after_stream(real.cuStreamSynchronize(stream), stream, false);
}

CUresult hook_cuStreamSynchronize_ptsz(CUstream stream) {
    before(stream, true);
    return after_stream(real.cuStreamSynchronize_ptsz(stream), stream, true);
}

CUresult hook_cuEventSynchronize(CUevent event) {
    throttle_count();
    return after(real.cuEventSynchronize(event));
}
