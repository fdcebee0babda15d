/*
 * Stream capture: calls become nodes of a graph instead of work. Some calls may not be made meanwhile, by the thread
 * that captures or, in the mode "global", by any: such a call fails and spoils the capture, unless its own thread's
 * mode (cuThreadExchangeStreamCaptureMode) lets it pass. Which calls: whoever calls capture_prohibits.
 */
#include <stdlib.h>
#include <string.h>

#include "graph.h"

enum { CAPTURE_NONE = 0, CAPTURE_ACTIVE = 1, CAPTURE_INVALIDATED = 2 };
enum { MODE_GLOBAL = 0, MODE_THREAD_LOCAL = 1, MODE_RELAXED = 2 };

static int active;
static __thread int thread_mode;

bool capturing(const struct stream *stream) {
    return stream->capture_status != CAPTURE_NONE;
}
bool capture_any(void) {
    return __atomic_load_n(&active, __ATOMIC_RELAXED) > 0;
}

CUresult capture_check(struct stream *stream) {
    return capturing(stream) ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

static bool is_against(const struct stream *stream) {
    bool own = pthread_equal(stream->capture_thread, pthread_self());
    return (own && stream->capture_mode != MODE_RELAXED) ||
           (thread_mode == MODE_GLOBAL && stream->capture_mode == MODE_GLOBAL);
}

bool capture_prohibits(void) {
    bool found = false;
    if (!capture_any() || thread_mode == MODE_RELAXED)
        return false;
    process_lock();
    for (int at = 0; at < process.devices; at++)
        for (struct context *context = process.device[at].contexts; context; context = context->next)
            for (struct stream *stream = context->streams; stream; stream = stream->next)
                if (capturing(stream) && is_against(stream)) {
                    stream->capture_status = CAPTURE_INVALIDATED;
                    found = true;
                }
    process_unlock();
    return found;
}

static bool set_deps(struct node ***deps, size_t *count, struct node *const *from, size_t length) {
    struct node **copy = length ? malloc(length * sizeof *copy) : NULL;
    if (length && !copy)
        return false;
    if (length)
        memcpy(copy, from, length * sizeof *copy);
    free(*deps);
    *deps = copy;
    *count = length;
    return true;
}

static CUresult add(struct stream *stream, const CUgraphNodeParams *params, int64_t length, struct node **out) {
    if (stream->capture_status == CAPTURE_INVALIDATED)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    CUresult result = node_add(stream->capture, stream->capture_deps, stream->capture_dep_count, params, length, out);
    if (result == CUDA_SUCCESS && !set_deps(&stream->capture_deps, &stream->capture_dep_count, out, 1))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    return result;
}

CUresult capture_timed(struct stream *stream, const CUgraphNodeParams *params, int64_t length) {
    struct node *node;
    return add(stream, params, length, &node);
}
CUresult capture_add(struct stream *stream, int type, const CUgraphNodeParams *params) {
    (void)type;
    return capture_timed(stream, params, -1);
}
CUresult capture_alloc(struct stream *stream, CUgraphNodeParams *params) {
    struct node *node;
    CUresult result = add(stream, params, -1, &node);
    if (result == CUDA_SUCCESS)
        params->alloc.pointer = node->params.alloc.pointer;
    return result;
}

CUresult capture_mark(struct event *event, struct stream *stream) {
    event->capturing = stream;
    event->capture_id = stream->capture_id;
    return set_deps(&event->capture_deps, &event->capture_dep_count, stream->capture_deps, stream->capture_dep_count)
               ? CUDA_SUCCESS
               : CUDA_ERROR_OUT_OF_MEMORY;
}

static void start(struct stream *stream, struct graph *graph, uint64_t id, int mode, pthread_t thread) {
    stream->capture_status = CAPTURE_ACTIVE;
    stream->capture_thread = thread;
    stream->capture_mode = mode;
    stream->capture = graph;
    stream->capture_id = id;
    stream->capture_origin = false;
    __atomic_add_fetch(&active, 1, __ATOMIC_RELAXED);
}

static void stop(struct stream *stream) {
    stream->capture_status = CAPTURE_NONE;
    stream->capture = NULL;
    set_deps(&stream->capture_deps, &stream->capture_dep_count, NULL, 0);
    __atomic_sub_fetch(&active, 1, __ATOMIC_RELAXED);
}

/* A stream that waits for an event of a capture joins it, or stands behind that event from now on. */
CUresult capture_join(struct stream *stream, struct event *event) {
    struct stream *from = event->capturing;
    if (!capturing(from) || from->capture_id != event->capture_id)
        return CUDA_ERROR_CAPTURED_EVENT;
    if (from->capture_status == CAPTURE_INVALIDATED)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!capturing(stream)) {
        start(stream, from->capture, from->capture_id, from->capture_mode, from->capture_thread);
        return set_deps(&stream->capture_deps, &stream->capture_dep_count, event->capture_deps,
                        event->capture_dep_count)
                   ? CUDA_SUCCESS
                   : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (stream->capture_id != event->capture_id)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    size_t all = stream->capture_dep_count + event->capture_dep_count, kept = stream->capture_dep_count;
    struct node **merged = all ? malloc(all * sizeof *merged) : NULL;
    if (!merged)
        return all ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    memcpy(merged, stream->capture_deps, kept * sizeof *merged);
    for (size_t at = 0; at < event->capture_dep_count; at++) {
        bool known = false;
        for (size_t other = 0; other < stream->capture_dep_count; other++)
            known |= merged[other] == event->capture_deps[at];
        if (!known)
            merged[kept++] = event->capture_deps[at];
    }
    free(stream->capture_deps);
    stream->capture_deps = merged;
    stream->capture_dep_count = kept;
    return CUDA_SUCCESS;
}

static CUresult begin(CUstream handle, int mode, struct graph *graph, const CUgraphNode *deps, size_t count) {
    NEED_CONTEXT(context);
    if (mode < 0 || mode > 2)
        return CUDA_ERROR_INVALID_VALUE;
    process_lock();
    struct stream *stream = stream_of(context, handle);
    CUresult result = CUDA_SUCCESS;
    if (stream == &context->legacy)
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    else if (capturing(stream))
        result = CUDA_ERROR_ILLEGAL_STATE;
    bool owned = !graph;
    if (result == CUDA_SUCCESS && !graph && !(graph = graph_new()))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) {
        start(stream, graph, ++process.next_id, mode, pthread_self());
        stream->capture_origin = true;
        stream->capture_owned = owned;
        set_deps(&stream->capture_deps, &stream->capture_dep_count, deps, count);
    }
    process_unlock();
    return result;
}
CUresult model_cuStreamBeginCapture_v2(CUstream stream, int mode) {
    return begin(stream, mode, NULL, NULL, 0);
}
CUresult model_cuStreamBeginCapture(CUstream stream) {
    return begin(stream, 0, NULL, NULL, 0);
}
CUresult model_cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *deps,
                                           const CUgraphEdgeData *edges, size_t count, int mode) {
    (void)edges;
    return graph ? begin(stream, mode, graph, deps, count) : CUDA_ERROR_INVALID_VALUE;
}

CUresult model_cuStreamEndCapture(CUstream handle, CUgraph *out) {
    NEED_CONTEXT(context);
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = NULL;
    process_lock();
    struct stream *stream = stream_of(context, handle);
    CUresult result = CUDA_SUCCESS;
    if (!capturing(stream)) {
        result = CUDA_ERROR_ILLEGAL_STATE;
    } else if (!stream->capture_origin) {
        result = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    } else {
        struct graph *graph = stream->capture;
        uint64_t id = stream->capture_id;
        bool joined = nodes_cover(graph, stream->capture_deps, stream->capture_dep_count, id);
        bool spoilt = false;
        for (struct stream *at = context->streams; at; at = at->next)
            if (capturing(at) && at->capture_id == id) {
                spoilt |= at->capture_status == CAPTURE_INVALIDATED;
                stop(at);
            }
        if (joined && !spoilt)
            *out = graph;
        else if (stream->capture_owned)
            graph_free(graph);
        result = spoilt   ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                 : joined ? CUDA_SUCCESS
                          : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    }
    process_unlock();
    return result;
}

CUresult model_cuStreamIsCapturing(CUstream handle, int *status) {
    NEED_CONTEXT(context);
    if (!status)
        return CUDA_ERROR_INVALID_VALUE;
    process_lock();
    *status = stream_of(context, handle)->capture_status;
    process_unlock();
    return CUDA_SUCCESS;
}
CUresult model_cuStreamGetCaptureInfo_v3(CUstream handle, int *status, uint64_t *id, CUgraph *graph,
                                         const CUgraphNode **deps, const CUgraphEdgeData **edges, size_t *count) {
    NEED_CONTEXT(context);
    if (!status)
        return CUDA_ERROR_INVALID_VALUE;
    process_lock();
    struct stream *stream = stream_of(context, handle);
    *status = stream->capture_status;
    if (stream->capture_status == CAPTURE_ACTIVE) {
        if (id)
            *id = stream->capture_id;
        if (graph)
            *graph = stream->capture;
        if (deps)
            *deps = stream->capture_deps;
        if (edges)
            *edges = NULL;
        if (count)
            *count = stream->capture_dep_count;
    }
    process_unlock();
    return CUDA_SUCCESS;
}
CUresult model_cuStreamGetCaptureInfo_v2(CUstream stream, int *status, uint64_t *id, CUgraph *graph,
                                         const CUgraphNode **deps, size_t *count) {
    return model_cuStreamGetCaptureInfo_v3(stream, status, id, graph, deps, NULL, count);
}
CUresult model_cuStreamGetCaptureInfo(CUstream stream, int *status, uint64_t *id) {
    return model_cuStreamGetCaptureInfo_v3(stream, status, id, NULL, NULL, NULL, NULL);
}
CUresult model_cuStreamUpdateCaptureDependencies(CUstream handle, CUgraphNode *deps, size_t count, unsigned int flags) {
    NEED_CONTEXT(context);
    process_lock();
    struct stream *stream = stream_of(context, handle);
    CUresult result = CUDA_ERROR_ILLEGAL_STATE;
    if (capturing(stream)) {
        size_t kept = flags & 1 ? 0 : stream->capture_dep_count; /* 1: replace, 0: add */
        struct node **merged = malloc((kept + count + 1) * sizeof *merged);
        result = merged ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        if (merged) {
            memcpy(merged, stream->capture_deps ? stream->capture_deps : merged, kept * sizeof *merged);
            memcpy(merged + kept, count ? deps : merged, count * sizeof *merged);
            free(stream->capture_deps);
            stream->capture_deps = merged;
            stream->capture_dep_count = kept + count;
        }
    }
    process_unlock();
    return result;
}
CUresult model_cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode *deps, const CUgraphEdgeData *edges,
                                                    size_t count, unsigned int flags) {
    (void)edges;
    return model_cuStreamUpdateCaptureDependencies(stream, deps, count, flags);
}
CUresult model_cuThreadExchangeStreamCaptureMode(int *mode) {
    if (!mode || *mode < 0 || *mode > 2)
        return CUDA_ERROR_INVALID_VALUE;
    int before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
