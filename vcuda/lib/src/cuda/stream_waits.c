/* Where a stream waits for what is no work of the card: the time is kept out of the spans that kernels around it are
 * measured in. */
#include "cuda/span_hold.h"
#include "cuda/stream_meter.h"
#include "interposer.h"

#define WAITS(name, per_thread, parameters, arguments)                                                                 \
    CUresult hook_##name parameters {                                                                                  \
        stream_meter_waits(stream, per_thread, false);                                                                 \
        return real.name arguments;                                                                                    \
    }
#define WAITS_FOR_HOST(name, per_thread, parameters, arguments)                                                        \
    CUresult hook_##name parameters {                                                                                  \
        span_hold_no_more();                                                                                           \
        stream_meter_waits(stream, per_thread, false);                                                                 \
        return real.name arguments;                                                                                    \
    }
#define WAITS_FOR_EVENT(name, per_thread, parameters, arguments)                                                       \
    CUresult hook_##name parameters {                                                                                  \
        stream_meter_waits(stream, per_thread, true);                                                                  \
        return real.name arguments;                                                                                    \
    }
#include "cuda/stream_waits.def"

CUresult hook_cuCtxWaitEvent(CUcontext context, CUevent event) {
    stream_meters_wait(context);
    return real.cuCtxWaitEvent(context, event);
}

CUresult hook_cuGreenCtxWaitEvent(CUgreenCtx green, CUevent event) {
    CUcontext context;
    if (green && real.cuCtxFromGreenCtx(&context, green) == CUDA_SUCCESS)
        stream_meters_wait(context);
    return real.cuGreenCtxWaitEvent(green, event);
}
