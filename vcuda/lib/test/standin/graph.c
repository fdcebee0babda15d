/* Building and reading graphs. */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

struct graph *graph_new(void) {
    struct graph *graph = calloc(1, sizeof *graph);
    if (!graph)
        return NULL;
    graph->end = &graph->nodes;
    graph->id = ++process.next_id;
    graph->context = context_current();
    return graph;
}

void graph_free(struct graph *graph) {
    while (graph && graph->nodes) {
        struct node *node = graph->nodes;
        graph->nodes = node->next;
        free(node->deps);
        free(node);
    }
    free(graph);
}

/* The caller's parameter arrays may be gone when the graph runs: what the model needs is kept. */
void node_set_kernel(struct node *node, const CUDA_KERNEL_NODE_PARAMS *params, bool short_form) {
    CUDA_KERNEL_NODE_PARAMS *mine = &node->params.kernel;
    size_t bytes = short_form ? offsetof(CUDA_KERNEL_NODE_PARAMS, kernel) : sizeof *mine;
    memmove(mine, params, bytes);
    struct function *function = mine->function ? mine->function : mine->kernel;
    if (!function)
        return;
    node->length = kernel_ns(function, mine->params);
    if (mine->params && function->fixed_ns < 0) {
        memcpy(&node->first_param, mine->params[0], sizeof node->first_param);
        node->param_pointer = &node->first_param;
        mine->params = &node->param_pointer;
    }
    struct context *context = context_current();
    node->alone = context && kernel_alone(context, mine->grid);
}

int64_t node_length(const CUgraphNodeParams *params) {
    switch (params->type) {
    case NODE_MEMSET:
        return 1000 + (int64_t)(params->memset.width * params->memset.height * params->memset.element_size / 1500);
    case NODE_MEMCPY: {
        const CUDA_MEMCPY3D *copy = &params->memcpy.copy;
        return 1000 + (int64_t)(copy->width * copy->height * copy->depth / 25);
    }
    default:
        return 0;
    }
}

/* A memory node reserves its addresses at once; the memory comes with the launch. */
static bool reserve(struct node *node) {
    void *pages = map_pages(node->params.alloc.bytes);
    node->params.alloc.pointer = (uintptr_t)pages;
    return pages && node->params.alloc.bytes;
}

static bool set_deps(struct node *node, struct node *const *deps, size_t count) {
    node->deps = count ? malloc(count * sizeof *deps) : NULL;
    if (count && (!node->deps || !deps))
        return false;
    if (count)
        memcpy(node->deps, deps, count * sizeof *deps);
    node->dep_count = count;
    return true;
}

CUresult node_add(struct graph *graph, struct node *const *deps, size_t count, const CUgraphNodeParams *params,
                  int64_t length, struct node **out) {
    if (!graph || !params || !out)
        return CUDA_ERROR_INVALID_VALUE;
    if (params->type == NODE_KERNEL && !params->kernel.function && !params->kernel.kernel)
        return CUDA_ERROR_INVALID_VALUE;
    struct node *node = calloc(1, sizeof *node);
    if (!node || !set_deps(node, deps, count)) {
        free(node);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    node->graph = graph;
    node->id = ++process.next_id;
    node->params = *params;
    node->length = length >= 0 ? length : node_length(params);
    if (params->type == NODE_KERNEL)
        node_set_kernel(node, &params->kernel, false);
    if (params->type == NODE_MEM_ALLOC && !reserve(node)) {
        free(node->deps);
        free(node);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *graph->end = node;
    graph->end = &node->next;
    *out = node;
    return CUDA_SUCCESS;
}

static void see(struct node *node) {
    if (node->seen)
        return;
    node->seen = true;
    for (size_t at = 0; at < node->dep_count; at++)
        see(node->deps[at]);
}

/* Does every node newer than from_id stand before one of the ends? */
bool nodes_cover(const struct graph *graph, struct node *const *ends, size_t count, uint64_t from_id) {
    for (struct node *node = graph->nodes; node; node = node->next)
        node->seen = false;
    for (size_t at = 0; at < count; at++)
        see(ends[at]);
    for (struct node *node = graph->nodes; node; node = node->next)
        if (node->id > from_id && !node->seen)
            return false;
    return true;
}

/* ---- making --------------------------------------------------------------------------------------------------- */

CUresult model_cuGraphCreate(CUgraph *out, unsigned int flags) {
    if (!out || flags)
        return CUDA_ERROR_INVALID_VALUE;
    process_lock();
    *out = graph_new();
    process_unlock();
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult model_cuGraphDestroy(CUgraph graph) {
    if (!graph)
        return CUDA_ERROR_INVALID_VALUE;
    process_lock();
    graph_free(graph);
    process_unlock();
    return CUDA_SUCCESS;
}

static CUresult add(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps, size_t count,
                    const CUgraphNodeParams *params) {
    process_lock();
    CUresult result = node_add(graph, deps, count, params, -1, out);
    process_unlock();
    return result;
}

CUresult model_cuGraphAddKernelNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps, size_t count,
                                       const CUDA_KERNEL_NODE_PARAMS *params) {
    return params ? add(out, graph, deps, count, &(CUgraphNodeParams){.type = NODE_KERNEL, .kernel = *params})
                  : CUDA_ERROR_INVALID_VALUE;
}
CUresult model_cuGraphAddKernelNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps, size_t count,
                                    const CUDA_KERNEL_NODE_PARAMS *params) {
    CUgraphNodeParams whole = {.type = NODE_KERNEL};
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&whole.kernel, params, offsetof(CUDA_KERNEL_NODE_PARAMS, kernel));
    return add(out, graph, deps, count, &whole);
}
CUresult model_cuGraphAddMemcpyNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps, size_t count,
                                    const CUDA_MEMCPY3D *copy, CUcontext context) {
    CUgraphNodeParams params = {.type = NODE_MEMCPY};
    if (!copy)
        return CUDA_ERROR_INVALID_VALUE;
    params.memcpy.context = context;
    params.memcpy.copy = *copy;
    return add(out, graph, deps, count, &params);
}
CUresult model_cuGraphAddMemsetNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps, size_t count,
                                    const CUDA_MEMSET_NODE_PARAMS *set, CUcontext context) {
    (void)context;
    return set ? add(out, graph, deps, count, &(CUgraphNodeParams){.type = NODE_MEMSET, .memset = *set})
               : CUDA_ERROR_INVALID_VALUE;
}
CUresult model_cuGraphAddHostNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps, size_t count,
                                  const CUDA_HOST_NODE_PARAMS *host) {
    return host ? add(out, graph, deps, count, &(CUgraphNodeParams){.type = NODE_HOST, .host = *host})
                : CUDA_ERROR_INVALID_VALUE;
}
CUresult model_cuGraphAddChildGraphNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps, size_t count,
                                        CUgraph child) {
    return child ? add(out, graph, deps, count, &(CUgraphNodeParams){.type = NODE_GRAPH, .child = child})
                 : CUDA_ERROR_INVALID_VALUE;
}
CUresult model_cuGraphAddEmptyNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps, size_t count) {
    return add(out, graph, deps, count, &(CUgraphNodeParams){.type = NODE_EMPTY});
}
CUresult model_cuGraphAddEventRecordNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps, size_t count,
                                         CUevent event) {
    return add(out, graph, deps, count, &(CUgraphNodeParams){.type = NODE_EVENT_RECORD, .event = event});
}
CUresult model_cuGraphAddEventWaitNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps, size_t count,
                                       CUevent event) {
    return add(out, graph, deps, count, &(CUgraphNodeParams){.type = NODE_WAIT_EVENT, .event = event});
}
CUresult model_cuGraphAddMemAllocNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps, size_t count,
                                      CUDA_MEM_ALLOC_NODE_PARAMS *alloc) {
    if (!alloc)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = add(out, graph, deps, count, &(CUgraphNodeParams){.type = NODE_MEM_ALLOC, .alloc = *alloc});
    if (result == CUDA_SUCCESS)
        alloc->pointer = (*out)->params.alloc.pointer;
    return result;
}
CUresult model_cuGraphAddMemFreeNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps, size_t count,
                                     CUdeviceptr pointer) {
    return add(out, graph, deps, count, &(CUgraphNodeParams){.type = NODE_MEM_FREE, .free = pointer});
}
CUresult model_cuGraphAddNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps, const CUgraphEdgeData *edges,
                                 size_t count, CUgraphNodeParams *params) {
    (void)edges;
    CUresult result = add(out, graph, deps, count, params);
    if (result == CUDA_SUCCESS && params->type == NODE_MEM_ALLOC)
        params->alloc.pointer = (*out)->params.alloc.pointer;
    return result;
}
CUresult model_cuGraphAddNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps, size_t count,
                              CUgraphNodeParams *params) {
    return model_cuGraphAddNode_v2(out, graph, deps, NULL, count, params);
}
ALIAS(cuGraphAddNode_v3, cuGraphAddNode_v2);

CUresult model_cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count) {
    if (!graph || (count && (!from || !to)))
        return CUDA_ERROR_INVALID_VALUE;
    process_lock();
    CUresult result = CUDA_SUCCESS;
    for (size_t at = 0; at < count && result == CUDA_SUCCESS; at++) {
        struct node *node = to[at], **grown = realloc(node->deps, (node->dep_count + 1) * sizeof *grown);
        if (!grown) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
        } else {
            node->deps = grown;
            node->deps[node->dep_count++] = from[at];
        }
    }
    process_unlock();
    return result;
}
CUresult model_cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                         const CUgraphEdgeData *edges, size_t count) {
    (void)edges;
    return model_cuGraphAddDependencies(graph, from, to, count);
}

/* ---- reading -------------------------------------------------------------------------------------------------- */

static CUresult list(CUgraph graph, CUgraphNode *nodes, size_t *count, bool roots) {
    if (!graph || !count)
        return CUDA_ERROR_INVALID_VALUE;
    size_t found = 0;
    process_lock();
    for (struct node *node = graph->nodes; node; node = node->next) {
        if (roots && node->dep_count)
            continue;
        if (nodes && found < *count)
            nodes[found] = node;
        found++;
    }
    process_unlock();
    *count = found;
    return CUDA_SUCCESS;
}
CUresult model_cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    return list(graph, nodes, count, false);
}
CUresult model_cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    return list(graph, nodes, count, true);
}
CUresult model_cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count) {
    if (!graph || !count)
        return CUDA_ERROR_INVALID_VALUE;
    size_t found = 0;
    process_lock();
    for (struct node *node = graph->nodes; node; node = node->next)
        for (size_t at = 0; at < node->dep_count; at++, found++)
            if (from && to && found < *count) {
                from[found] = node->deps[at];
                to[found] = node;
            }
    process_unlock();
    *count = found;
    return CUDA_SUCCESS;
}
CUresult model_cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edges,
                                  size_t *count) {
    if (edges && count)
        memset(edges, 0, *count * sizeof *edges);
    return model_cuGraphGetEdges(graph, from, to, count);
}
CUresult model_cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *deps, size_t *count) {
    if (!node || !count)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t at = 0; deps && at < *count && at < node->dep_count; at++)
        deps[at] = node->deps[at];
    *count = node->dep_count;
    return CUDA_SUCCESS;
}
CUresult model_cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *deps, CUgraphEdgeData *edges,
                                             size_t *count) {
    if (edges && count)
        memset(edges, 0, *count * sizeof *edges);
    return model_cuGraphNodeGetDependencies(node, deps, count);
}
CUresult model_cuGraphNodeGetType(CUgraphNode node, int *type) {
    if (!node || !type)
        return CUDA_ERROR_INVALID_VALUE;
    *type = node->params.type;
    return CUDA_SUCCESS;
}
CUresult model_cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params) {
    if (!node || !params || node->params.type != NODE_KERNEL)
        return CUDA_ERROR_INVALID_VALUE;
    *params = node->params.kernel;
    return CUDA_SUCCESS;
}
CUresult model_cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params) {
    if (!node || !params || node->params.type != NODE_KERNEL)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(params, &node->params.kernel, offsetof(CUDA_KERNEL_NODE_PARAMS, kernel));
    return CUDA_SUCCESS;
}
static CUresult set_kernel(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params, bool short_form) {
    if (!node || !params || node->params.type != NODE_KERNEL)
        return CUDA_ERROR_INVALID_VALUE;
    process_lock();
    node_set_kernel(node, params, short_form);
    process_unlock();
    return CUDA_SUCCESS;
}
CUresult model_cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params) {
    return set_kernel(node, params, false);
}
CUresult model_cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params) {
    return set_kernel(node, params, true);
}
CUresult model_cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph) {
    if (!node || !graph || node->params.type != NODE_GRAPH)
        return CUDA_ERROR_INVALID_VALUE;
    *graph = node->params.child;
    return CUDA_SUCCESS;
}
CUresult model_cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *out) {
    if (!node || !out || node->params.type != NODE_MEM_FREE)
        return CUDA_ERROR_INVALID_VALUE;
    *out = node->params.free;
    return CUDA_SUCCESS;
}
CUresult model_cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    if (!node || !params || node->params.type != NODE_MEM_ALLOC)
        return CUDA_ERROR_INVALID_VALUE;
    *params = node->params.alloc;
    return CUDA_SUCCESS;
}
