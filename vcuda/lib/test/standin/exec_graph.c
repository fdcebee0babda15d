/* Executable graphs: instantiated from a graph, updated, launched. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "graph.h"

static void exec_free(struct graph_exec *exec) {
    for (int at = 0; at < exec->count; at++)
        free(exec->steps[at].deps);
    free(exec->steps);
    free(exec);
}

static int count_nodes(const struct graph *graph) {
    int count = 0;
    for (struct node *node = graph->nodes; node; node = node->next)
        count += node->params.type == NODE_GRAPH && node->params.child ? count_nodes(node->params.child) + 1 : 1;
    return count;
}

static int index_of(const struct graph_exec *exec, const struct node *node) {
    for (int at = exec->count - 1; at >= 0; at--)
        if (exec->steps[at].source == node)
            return at;
    return -1;
}

/* Add the node behind its dependencies; `before` are steps that all of a child graph waits for. */
static bool append(struct graph_exec *exec, struct node *node, const int *before, int before_count);

static bool append_all(struct graph_exec *exec, struct graph *graph, const int *before, int before_count) {
    for (struct node *node = graph->nodes; node; node = node->next)
        node->seen = false;
    for (struct node *node = graph->nodes; node; node = node->next)
        if (!append(exec, node, before, before_count))
            return false;
    return true;
}

static bool append(struct graph_exec *exec, struct node *node, const int *before, int before_count) {
    if (node->seen)
        return true;
    node->seen = true;
    for (size_t at = 0; at < node->dep_count; at++)
        if (!append(exec, node->deps[at], before, before_count))
            return false;
    int *deps = malloc((node->dep_count + (size_t)before_count + (size_t)exec->count + 1) * sizeof *deps), count = 0;
    if (!deps)
        return false;
    for (int at = 0; at < before_count; at++)
        deps[count++] = before[at];
    for (size_t at = 0; at < node->dep_count; at++)
        deps[count++] = index_of(exec, node->deps[at]);
    if (node->params.type == NODE_GRAPH && node->params.child) {
        int first = exec->count;
        if (!append_all(exec, node->params.child, deps, count)) {
            free(deps);
            return false;
        }
        int *grown = realloc(deps, (size_t)(count + exec->count - first + 1) * sizeof *deps);
        if (!grown) {
            free(deps);
            return false;
        }
        deps = grown;
        for (int at = first; at < exec->count; at++)
            deps[count++] = at;
    }
    exec->steps[exec->count++] = (struct step){.source = node,
                                               .params = node->params,
                                               .length = node->length,
                                               .alone = node->alone,
                                               .enabled = true,
                                               .deps = deps,
                                               .dep_count = count};
    exec->has_host |= node->params.type == NODE_HOST;
    return true;
}

static CUresult instantiate(CUgraphExec *out, CUgraph graph, uint64_t flags) {
    NEED_CONTEXT(context);
    if (!out || !graph)
        return CUDA_ERROR_INVALID_VALUE;
    process_lock();
    int count = count_nodes(graph);
    struct graph_exec *exec = calloc(1, sizeof *exec);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (exec && (exec->steps = calloc((size_t)count + 1, sizeof *exec->steps))) {
        exec->context = context;
        exec->flags = flags;
        exec->id = ++process.next_id;
        if (append_all(exec, graph, NULL, 0))
            result = CUDA_SUCCESS;
        exec->peak = result == CUDA_SUCCESS ? graph_memory_peak(exec) : 0;
    }
    if (result == CUDA_SUCCESS)
        *out = exec;
    else if (exec)
        exec_free(exec);
    process_unlock();
    return result;
}

CUresult model_cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags) {
    return instantiate(out, graph, flags);
}
CUresult model_cuGraphInstantiate(CUgraphExec *out, CUgraph graph, CUgraphNode *error, char *log, size_t size) {
    if (error)
        *error = NULL;
    if (log && size)
        log[0] = '\0';
    return instantiate(out, graph, 0);
}
ALIAS(cuGraphInstantiate_v2, cuGraphInstantiate);
CUresult model_cuGraphUpload(CUgraphExec exec, CUstream stream);
CUresult model_cuGraphExecDestroy(CUgraphExec exec);
CUresult model_cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    params->error_node = NULL;
    params->result = 0;
    CUresult result = instantiate(out, graph, params->flags);
    if (result != CUDA_SUCCESS || !(params->flags & UPLOAD))
        return result;
    result = model_cuGraphUpload(*out, params->upload);
    if (result != CUDA_SUCCESS)
        model_cuGraphExecDestroy(*out);
    return result;
}
CUresult model_cuGraphExecDestroy(CUgraphExec exec) {
    if (!exec)
        return CUDA_ERROR_INVALID_VALUE;
    process_lock();
    exec_free(exec);
    process_unlock();
    return CUDA_SUCCESS;
}
CUresult model_cuGraphExecGetFlags(CUgraphExec exec, uint64_t *flags) {
    if (!exec || !flags)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = exec->flags;
    return CUDA_SUCCESS;
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

/* With host functions in it, or behind one, a graph runs as a line of operations of the stream. */
static void run_in_line(struct graph_exec *exec, struct stream *stream) {
    for (int at = 0; at < exec->count; at++) {
        struct step *step = &exec->steps[at];
        if (!step->enabled)
            continue;
        struct operation operation = {.kind = OP_WORK, .length = step->length, .alone = step->alone};
        if (step->params.type == NODE_HOST)
            operation = (struct operation){.kind = OP_HOST, .fn = step->params.host.fn, .data = step->params.host.data};
        if (step->params.type == NODE_EVENT_RECORD)
            operation = (struct operation){
                .kind = OP_RECORD, .event = step->params.event, .generation = ++step->params.event->generation};
        exec_hold(stream, operation);
    }
}

static void run(struct graph_exec *exec, struct stream *stream) {
    int64_t begin = exec_begin(stream), last = begin;
    for (int at = 0; at < exec->count; at++) {
        struct step *step = &exec->steps[at];
        int64_t start = begin;
        for (int dep = 0; dep < step->dep_count; dep++)
            if (exec->steps[step->deps[dep]].end > start)
                start = exec->steps[step->deps[dep]].end;
        if (step->params.type == NODE_WAIT_EVENT && step->params.event->p > start)
            start = step->params.event->p;
        step->end = step->enabled && step->length ? exec_place(stream, start, step->length, step->alone) : start;
        if (step->end > last)
            last = step->end;
    }
    exec_finish(stream, last);
    for (int at = 0; at < exec->count; at++)
        if (exec->steps[at].params.type == NODE_EVENT_RECORD)
            exec_record(exec->steps[at].params.event, stream);
}

/* The local memory of its kernels. That it comes with the launch, as theirs does outside graphs, is a guess. */
static CUresult take_local(const struct graph_exec *exec, struct context *context) {
    bool fits = true;
    for (int at = 0; at < exec->count && fits; at++) {
        const CUDA_KERNEL_NODE_PARAMS *kernel = &exec->steps[at].params.kernel;
        if (exec->steps[at].params.type == NODE_KERNEL && (kernel->function || kernel->kernel))
            fits = function_local(context, kernel->function ? kernel->function : kernel->kernel);
    }
    return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult model_cuGraphLaunch(CUgraphExec exec, CUstream handle) {
    NEED_CONTEXT(context);
    if (!exec)
        return CUDA_ERROR_INVALID_VALUE;
    exec_queue_wait(context->device);
    process_lock();
    struct stream *stream = stream_of(context, handle);
    CUresult result = capture_check(stream);
    if (result == CUDA_SUCCESS)
        result = take_local(exec, stream->context);
    if (result == CUDA_SUCCESS)
        result = graph_memory_take(exec, stream);
    if (result == CUDA_SUCCESS && (exec->has_host || stream->held))
        run_in_line(exec, stream);
    else if (result == CUDA_SUCCESS)
        run(exec, stream);
    struct device *device = context->device;
    if (result == CUDA_SUCCESS)
        graph_memory_runs(exec, stream, exec_tail(stream));
    if (result == CUDA_SUCCESS)
        device->pending[device->launches++ % LAUNCH_QUEUE] = stream->tail;
    process_unlock();
    return result;
}

/* Uploading brings the graph's memory to the card. */
CUresult model_cuGraphUpload(CUgraphExec exec, CUstream stream) {
    NEED_CONTEXT(context);
    (void)stream;
    if (!exec)
        return CUDA_ERROR_INVALID_VALUE;
    process_lock();
    CUresult result = graph_memory_map(exec);
    process_unlock();
    return result;
}

/* ---- changing --------------------------------------------------------------------------------------------------- */

static CUresult set_kernel(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params, bool short_form) {
    int at = exec && node && params ? index_of(exec, node) : -1;
    if (at < 0 || node->params.type != NODE_KERNEL)
        return CUDA_ERROR_INVALID_VALUE;
    process_lock();
    struct node changed = *node;
    node_set_kernel(&changed, params, short_form);
    exec->steps[at].length = changed.length;
    exec->steps[at].params.kernel = changed.params.kernel;
    exec->steps[at].alone = changed.alone;
    process_unlock();
    return CUDA_SUCCESS;
}
CUresult model_cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                                 const CUDA_KERNEL_NODE_PARAMS *params) {
    return set_kernel(exec, node, params, false);
}
CUresult model_cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                              const CUDA_KERNEL_NODE_PARAMS *params) {
    return set_kernel(exec, node, params, true);
}
CUresult model_cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int enabled) {
    int at = exec && node ? index_of(exec, node) : -1;
    if (at < 0)
        return CUDA_ERROR_INVALID_VALUE;
    exec->steps[at].enabled = enabled != 0;
    return CUDA_SUCCESS;
}
CUresult model_cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int *enabled) {
    int at = exec && node && enabled ? index_of(exec, node) : -1;
    if (at < 0)
        return CUDA_ERROR_INVALID_VALUE;
    *enabled = exec->steps[at].enabled;
    return CUDA_SUCCESS;
}

/* A graph of the same shape replaces the parameters, node by node. */
CUresult model_cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info) {
    if (!exec || !graph)
        return CUDA_ERROR_INVALID_VALUE;
    struct graph_exec *fresh = NULL;
    CUresult result = instantiate(&fresh, graph, exec->flags);
    if (result != CUDA_SUCCESS)
        return result;
    process_lock();
    bool same = fresh->count == exec->count;
    for (int at = 0; same && at < exec->count; at++)
        same = fresh->steps[at].params.type == exec->steps[at].params.type;
    for (int at = 0; same && at < exec->count; at++) {
        exec->steps[at].length = fresh->steps[at].length;
        exec->steps[at].alone = fresh->steps[at].alone;
        exec->steps[at].params = fresh->steps[at].params;
    }
    if (same)
        exec->peak = fresh->peak;
    exec_free(fresh);
    process_unlock();
    if (info)
        *info = (CUgraphExecUpdateResultInfo){.result = same ? 0 : 2}; /* 2: topology changed */
    return same ? CUDA_SUCCESS : 910;
}
CUresult model_cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error, int *update) {
    CUgraphExecUpdateResultInfo info = {0};
    CUresult result = model_cuGraphExecUpdate_v2(exec, graph, &info);
    if (error)
        *error = NULL;
    if (update)
        *update = info.result;
    return result;
}
