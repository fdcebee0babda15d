/* Capture: while a stream is captured nothing runs, so nothing is charged, held back or measured there; and ends of
 * streams. How many captures there are is kept too high rather than too low: then it only costs a question a launch. */
#include "cuda/graph_pool.h"
#include "cuda/context_meter.h"
#include "cuda/stream_account.h"
#include "cuda/stream_meter.h"
#include "interposer.h"

/* What the stream has open is closed before it is captured; from here on the helper records nothing anywhere. */
static void begin(CUstream stream, bool per_thread) {
    __atomic_fetch_add(&meter_captures, 1, __ATOMIC_SEQ_CST);
    if (meter_lock(true))
        meter_unlock();
    if (!stream_is_capturing(stream, per_thread))
        stream_meter_flush(stream, per_thread);
}

static CUresult begun(CUresult result) {
    if (result != CUDA_SUCCESS)
        __atomic_fetch_sub(&meter_captures, 1, __ATOMIC_SEQ_CST);
    return result;
}

/* Only a call that takes a stream out of capture counts. */
static CUresult ended(bool was, CUstream stream, bool per_thread, CUresult result) {
    if (was && !stream_is_capturing(stream, per_thread) && __atomic_load_n(&meter_captures, __ATOMIC_SEQ_CST))
        __atomic_fetch_sub(&meter_captures, 1, __ATOMIC_SEQ_CST);
    return result;
}

#define BEGIN(name, per_thread, parameters, arguments)                                                                 \
    CUresult hook_##name parameters {                                                                                  \
        begin(stream, per_thread);                                                                                     \
        return begun(real.name arguments);                                                                             \
    }
#define END(name, per_thread, parameters, arguments)                                                                   \
    CUresult hook_##name parameters {                                                                                  \
        bool was = __atomic_load_n(&meter_captures, __ATOMIC_SEQ_CST) && stream_is_capturing(stream, per_thread);      \
        return ended(was, stream, per_thread, real.name arguments);                                                    \
    }

BEGIN(cuStreamBeginCapture, false, (CUstream stream), (stream))
BEGIN(cuStreamBeginCapture_ptsz, true, (CUstream stream), (stream))
BEGIN(cuStreamBeginCapture_v2, false, (CUstream stream, int mode), (stream, mode))
BEGIN(cuStreamBeginCapture_v2_ptsz, true, (CUstream stream, int mode), (stream, mode))
BEGIN(cuStreamBeginCaptureToGraph, false,
      (CUstream stream, CUgraph graph, const CUgraphNode *nodes, const void *edges, size_t count, int mode),
      (stream, graph, nodes, edges, count, mode))
BEGIN(cuStreamBeginCaptureToGraph_ptsz, true,
      (CUstream stream, CUgraph graph, const CUgraphNode *nodes, const void *edges, size_t count, int mode),
      (stream, graph, nodes, edges, count, mode))
BEGIN(cuStreamBeginRecaptureToGraph, false, (CUstream stream, int mode, CUgraph graph, void *callback, void *data),
      (stream, mode, graph, callback, data))
BEGIN(cuStreamBeginRecaptureToGraph_ptsz, true, (CUstream stream, int mode, CUgraph graph, void *callback, void *data),
      (stream, mode, graph, callback, data))
BEGIN(cuStreamBeginCaptureToCig, false, (CUstream stream, void *params), (stream, params))
BEGIN(cuStreamBeginCaptureToCig_ptsz, true, (CUstream stream, void *params), (stream, params))
END(cuStreamEndCapture, false, (CUstream stream, CUgraph *graph), (stream, graph))
END(cuStreamEndCapture_ptsz, true, (CUstream stream, CUgraph *graph), (stream, graph))
END(cuStreamEndCaptureToCig, false, (CUstream stream), (stream))
END(cuStreamEndCaptureToCig_ptsz, true, (CUstream stream), (stream))

static void stream_ends(CUstream stream) {
    stream_meter_ends(stream);
    if (graph_pools_exist())
        graph_pools_stream_ends(stream);
}

CUresult hook_cuStreamDestroy(CUstream stream) {
    stream_ends(stream);
    return stream_account_destroy(stream);
}

CUresult hook_cuStreamDestroy_v2(CUstream stream) {
    stream_ends(stream);
    return stream_account_destroy_v2(stream);
}
