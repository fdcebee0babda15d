/* Streams and events. */
#include <stdlib.h>

#include "process.h"

CUresult model_cuStreamCreateWithPriority(CUstream *out, unsigned int flags, int priority) {
    NEED_CONTEXT(context);
    if (!out || flags > 1)
        return CUDA_ERROR_INVALID_VALUE;
    struct stream *stream = calloc(1, sizeof *stream);
    if (!stream)
        return CUDA_ERROR_OUT_OF_MEMORY;
    stream->context = context;
    stream->flags = flags;
    stream->priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    stream->held_end = &stream->held;
    process_lock();
    bool fits = context_stream(context);
    if (fits) {
        stream->id = ++process.next_id;
        stream->next = context->streams;
        context->streams = stream;
    }
    process_unlock();
    if (!fits) {
        free(stream);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = stream;
    return CUDA_SUCCESS;
}
CUresult model_cuStreamCreate(CUstream *out, unsigned int flags) {
    return model_cuStreamCreateWithPriority(out, flags, 0);
}

/* Work already submitted still runs: its places are on the card. */
CUresult model_cuStreamDestroy_v2(CUstream stream) {
    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
        return CUDA_ERROR_INVALID_HANDLE;
    process_lock();
    while (stream->held)
        pthread_cond_wait(&process.progress, &process.lock);
    for (struct stream **at = &stream->context->streams; *at; at = &(*at)->next)
        if (*at == stream) {
            *at = stream->next;
            break;
        }
    stream->context->streams_now--;
    free(stream->capture_deps);
    free(stream);
    process_unlock();
    return CUDA_SUCCESS;
}
ALIAS(cuStreamDestroy, cuStreamDestroy_v2);

/* Finds the stream, and answers for one that is being captured. */
static CUresult find(CUstream handle, bool while_capturing, struct stream **out) {
    NEED_CONTEXT(context);
    process_lock();
    *out = stream_of(context, handle);
    CUresult result = while_capturing ? CUDA_SUCCESS : capture_check(*out);
    process_unlock();
    return result;
}

CUresult model_cuStreamSynchronize(CUstream handle) {
    struct stream *stream;
    CUresult result = find(handle, false, &stream);
    if (result == CUDA_SUCCESS)
        exec_stream_wait(stream);
    return result;
}
CUresult model_cuStreamQuery(CUstream handle) {
    struct stream *stream;
    CUresult result = find(handle, false, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (capture_prohibits())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    process_lock();
    bool done = !stream->held && exec_reached(stream->context->device, exec_tail(stream));
    if (done)
        pool_sync(stream->context->device);
    process_unlock();
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
CUresult model_cuStreamGetPriority(CUstream handle, int *priority) {
    struct stream *stream;
    CUresult result = find(handle, true, &stream);
    if (result == CUDA_SUCCESS)
        *priority = stream->priority;
    return result;
}
CUresult model_cuStreamGetFlags(CUstream handle, unsigned int *flags) {
    struct stream *stream;
    CUresult result = find(handle, true, &stream);
    if (result == CUDA_SUCCESS)
        *flags = stream->flags;
    return result;
}
CUresult model_cuStreamGetId(CUstream handle, unsigned long long *id) {
    struct stream *stream;
    CUresult result = find(handle, true, &stream);
    if (result == CUDA_SUCCESS)
        *id = stream->id;
    return result;
}
CUresult model_cuStreamGetCtx(CUstream handle, CUcontext *out) {
    struct stream *stream;
    CUresult result = find(handle, true, &stream);
    if (result == CUDA_SUCCESS)
        *out = stream->context;
    return result;
}
CUresult model_cuStreamGetCtx_v2(CUstream handle, CUcontext *out, void **green) {
    if (green)
        *green = NULL;
    return model_cuStreamGetCtx(handle, out);
}
CUresult model_cuStreamGetDevice(CUstream handle, CUdevice *out) {
    struct stream *stream;
    CUresult result = find(handle, true, &stream);
    if (result == CUDA_SUCCESS)
        *out = stream->context->device->ordinal;
    return result;
}
CUresult model_cuStreamAttachMemAsync(CUstream handle, CUdeviceptr pointer, size_t length, unsigned int flags) {
    struct stream *stream;
    (void)pointer;
    (void)length;
    (void)flags;
    return find(handle, true, &stream);
}

/* ---- host functions ---------------------------------------------------------------------------------------- */

static CUresult host(CUstream handle, struct operation operation) {
    NEED_CONTEXT(context);
    if (!operation.fn && !operation.callback)
        return CUDA_ERROR_INVALID_VALUE;
    process_lock();
    struct stream *stream = stream_of(context, handle);
    CUresult result = CUDA_SUCCESS;
    if (capturing(stream)) {
        CUgraphNodeParams params = {.type = NODE_HOST, .host = {operation.fn, operation.data}};
        result = operation.fn ? capture_add(stream, NODE_HOST, &params) : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    } else {
        exec_hold(stream, operation);
    }
    process_unlock();
    return result;
}

CUresult model_cuLaunchHostFunc(CUstream stream, CUhostFn fn, void *data) {
    return host(stream, (struct operation){.kind = OP_HOST, .fn = fn, .data = data});
}
CUresult model_cuLaunchHostFunc_v2(CUstream stream, CUhostFn fn, void *data, unsigned int mode) {
    (void)mode;
    return model_cuLaunchHostFunc(stream, fn, data);
}
CUresult model_cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void *data, unsigned int flags) {
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    return host(stream, (struct operation){.kind = OP_HOST, .callback = callback, .data = data});
}

/* ---- events ------------------------------------------------------------------------------------------------- */

CUresult model_cuEventCreate(CUevent *out, unsigned int flags) {
    NEED_CONTEXT(context);
    if (!out || flags > 7)
        return CUDA_ERROR_INVALID_VALUE;
    struct event *event = calloc(1, sizeof *event);
    if (!event)
        return CUDA_ERROR_OUT_OF_MEMORY;
    event->context = context;
    event->flags = flags;
    process_lock();
    event->next = context->events;
    context->events = event;
    process_unlock();
    *out = event;
    return CUDA_SUCCESS;
}
CUresult model_cuEventDestroy_v2(CUevent event) {
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    process_lock();
    exec_forget_event(event);
    for (struct event **at = &event->context->events; *at; at = &(*at)->next)
        if (*at == event) {
            *at = event->next;
            break;
        }
    free(event->capture_deps);
    free(event);
    process_unlock();
    return CUDA_SUCCESS;
}
ALIAS(cuEventDestroy, cuEventDestroy_v2);

CUresult model_cuEventRecordWithFlags(CUevent event, CUstream handle, unsigned int flags) {
    NEED_CONTEXT(context);
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!(event->flags & EVENT_DISABLE_TIMING))
        exec_call(config_read()->record_ns);
    process_lock();
    struct stream *stream = stream_of(context, handle);
    CUresult result = CUDA_SUCCESS;
    if (event->context->device != stream->context->device) {
        result = CUDA_ERROR_INVALID_HANDLE;
    } else if (capturing(stream)) {
        CUgraphNodeParams params = {.type = NODE_EVENT_RECORD, .event = event};
        /* Only an external record (flag 1) becomes a node; any other marks a place in the capture. */
        result = flags & 1 ? capture_add(stream, NODE_EVENT_RECORD, &params) : capture_mark(event, stream);
    } else {
        event->capturing = NULL;
        exec_record(event, stream);
    }
    process_unlock();
    return result;
}
CUresult model_cuEventRecord(CUevent event, CUstream stream) {
    return model_cuEventRecordWithFlags(event, stream, 0);
}

/* Has it happened? When is settled by the first look: the card's account of old times gets coarser with new work, and
 * what an event says must not change with it. */
static bool happened(struct event *event) {
    struct device *device = event->context->device;
    if (event->placed < event->generation || !exec_reached(device, event->p))
        return false;
    if (!event->happened_at) {
        int64_t wall = exec_wall(device, event->p);
        event->happened_at = wall > event->not_before ? wall : event->not_before;
    }
    return true;
}

static CUresult query(struct event *event) {
    if (event->capturing)
        return CUDA_ERROR_CAPTURED_EVENT;
    return !event->generation || happened(event) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult model_cuEventQuery(CUevent event) {
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!event->capturing && capture_prohibits())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    process_lock();
    CUresult result = query(event);
    process_unlock();
    return result;
}
CUresult model_cuEventSynchronize(CUevent event) {
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    if (event->capturing)
        return CUDA_ERROR_CAPTURED_EVENT;
    if (capture_prohibits())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (event->generation)
        exec_event_wait(event);
    return CUDA_SUCCESS;
}

/* Resolution is half a microsecond, as NVIDIA documents. */
CUresult model_cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    if (!start || !end || !start->generation || !end->generation)
        return CUDA_ERROR_INVALID_HANDLE;
    if ((start->flags | end->flags) & EVENT_DISABLE_TIMING)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!milliseconds)
        return CUDA_ERROR_INVALID_VALUE;
    process_lock();
    CUresult result = query(start);
    if (result == CUDA_SUCCESS)
        result = query(end);
    int64_t steps = (end->happened_at - start->happened_at) / config_read()->step_ns;
    process_unlock();
    if (result == CUDA_SUCCESS)
        *milliseconds = (float)((double)(steps * config_read()->step_ns) / 1e6);
    return result;
}
ALIAS(cuEventElapsedTime_v2, cuEventElapsedTime);

static void wait_for(struct stream *stream, struct event *event) {
    struct device *other = event->context->device;
    if (other != stream->context->device && event->placed == event->generation)
        exec_hold(stream, (struct operation){.kind = OP_OTHER_CARD, .other = other, .length = event->p});
    else if (stream->held || event->placed < event->generation)
        exec_hold(stream, (struct operation){.kind = OP_WAIT, .event = event, .generation = event->generation});
    else
        exec_finish(stream, event->p);
}

CUresult model_cuStreamWaitEvent(CUstream handle, CUevent event, unsigned int flags) {
    NEED_CONTEXT(context);
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    process_lock();
    struct stream *stream = stream_of(context, handle);
    CUresult result = CUDA_SUCCESS;
    if (event->capturing) {
        result = capture_join(stream, event);
    } else if (capturing(stream)) {
        CUgraphNodeParams params = {.type = NODE_WAIT_EVENT, .event = event};
        result = flags & 1 ? capture_add(stream, NODE_WAIT_EVENT, &params) : CUDA_SUCCESS;
    } else if (event->generation) {
        wait_for(stream, event);
    }
    process_unlock();
    return result;
}

/* All streams that the context has by now; the model has none that begin later wait. */
CUresult model_cuCtxWaitEvent(CUcontext context, CUevent event) {
    if (!context || !event || !context->alive)
        return CUDA_ERROR_INVALID_HANDLE;
    process_lock();
    struct context *owner = context->primary ? context->primary : context;
    if (event->generation) {
        wait_for(&owner->legacy, event);
        for (struct stream *stream = owner->streams; stream; stream = stream->next)
            wait_for(stream, event);
    }
    process_unlock();
    return CUDA_SUCCESS;
}

CUresult model_cuGreenCtxWaitEvent(CUgreenCtx green, CUevent event) {
    return model_cuCtxWaitEvent(green, event);
}
