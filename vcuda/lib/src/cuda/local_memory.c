#include "cuda/local_memory.h"

#include <errno.h>
#include <stdlib.h>

#include "attachment.h"
#include "cuda/allocation_table.h"
#include "cuda/context_registry.h"
#include "cuda/setting.h"
#include "cuda/stream_meter.h"
#include "interposer.h"

_Static_assert(LOCAL_MARKS == 1u << (64 - 50), "a handle's upper fourteen bits are its place");
uint16_t local_marks[LOCAL_MARKS];
uint32_t local_marked;

/* Not asked yet. */
#define UNKNOWN UINT64_MAX

/* ---- functions that the program gets
 * ------------------------------------------------------------------------------------ */

/* A kernel of a library has no context, so its mark stays where it is large: each context that launches it takes its
 * own. */
enum { OF_A_CONTEXT, OF_NONE };

static void mark(const void *function, unsigned kind) {
    struct allocation old, item = {.key = (uint64_t)(uintptr_t)function,
                                   .bytes = UNKNOWN,
                                   .count = kind,
                                   .card = -1,
                                   .kind = ALLOCATION_FUNCTION};
    if (!function || vcuda_attached() != VCUDA_ATTACHED || allocation_put(&item, &old) != ALLOCATION_NEW)
        return;
    __atomic_fetch_add(&local_marks[local_place(function)], 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&local_marked, 1, __ATOMIC_RELAXED);
}

static void unmark(const void *function) {
    struct allocation item;
    if (!allocation_take(ALLOCATION_FUNCTION, (uint64_t)(uintptr_t)function, &item))
        return;
    __atomic_fetch_sub(&local_marks[local_place(function)], 1, __ATOMIC_RELAXED);
    __atomic_fetch_sub(&local_marked, 1, __ATOMIC_RELAXED);
}

static CUresult got(CUresult result, void *const *list, unsigned int count, unsigned kind) {
    for (unsigned int i = 0; result == CUDA_SUCCESS && list && i < count; i++)
        mark(list[i], kind);
    return result;
}

CUresult hook_cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name) {
    return got(real.cuModuleGetFunction(out, module, name), (void *const *)out, 1, OF_A_CONTEXT);
}

CUresult hook_cuModuleEnumerateFunctions(CUfunction *list, unsigned int count, CUmodule module) {
    return got(real.cuModuleEnumerateFunctions(list, count, module), (void *const *)list, count, OF_A_CONTEXT);
}

CUresult hook_cuKernelGetFunction(CUfunction *out, CUkernel kernel) {
    return got(real.cuKernelGetFunction(out, kernel), (void *const *)out, 1, OF_A_CONTEXT);
}

CUresult hook_cuLibraryGetKernel(CUkernel *out, CUlibrary library, const char *name) {
    return got(real.cuLibraryGetKernel(out, library, name), (void *const *)out, 1, OF_NONE);
}

CUresult hook_cuLibraryEnumerateKernels(CUkernel *list, unsigned int count, CUlibrary library) {
    return got(real.cuLibraryEnumerateKernels(list, count, library), (void *const *)list, count, OF_NONE);
}

/* ---- launches
 * ------------------------------------------------------------------------------------------------------ */

static bool ask(const void *function, unsigned kind, CUdevice device, uint64_t *bytes) {
    int value = 0;
    CUresult result =
        kind == OF_NONE
            ? real.cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, (CUkernel)function, device)
            : real.cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, (CUfunction)function);
    *bytes = value > 0 ? (uint64_t)value : 0;
    return result == CUDA_SUCCESS;
}

static CUresult first_launch(const void *function, struct allocation *item, struct current_context *where) {
    struct allocation old;
    bool is_new = item->bytes == UNKNOWN;
    if ((is_new && !ask(function, item->count, where->device, &item->bytes)) || item->bytes <= SETTING_LOCAL_OWN ||
        where->card < 0) {
        unmark(function); /* nothing to charge, or nothing that can be known of it */
        return CUDA_SUCCESS;
    }
    CUresult result = setting_local(where, item->bytes);
    if (result == CUDA_SUCCESS && item->count == OF_A_CONTEXT)
        unmark(function);
    else if (is_new)
        allocation_put(item, &old);
    return result;
}

CUresult local_launch(const void *function, CUstream stream, bool per_thread) {
    struct allocation item;
    struct current_context where;
    int saved = errno;
    CUresult result = CUDA_SUCCESS;
    bool captured = __atomic_load_n(&meter_captures, __ATOMIC_ACQUIRE) && stream_is_capturing(stream, per_thread);
    if (!captured && allocation_get(ALLOCATION_FUNCTION, (uint64_t)(uintptr_t)function, &item) &&
        context_of_stream(stream, &where))
        result = first_launch(function, &item, &where);
    errno = saved;
    return result;
}

/* ---- graphs: their kernels are known by functions that the program need not have seen
 * ----------------------------------------------------- */

#define DEEPEST 32

/* The local memory of a node's kernel, 0 where it cannot be asked; of which context that is, NULL: of the current. */
static uint64_t node_bytes(const CUDA_KERNEL_NODE_PARAMS *params, CUcontext *context) {
    struct current_context where;
    uint64_t bytes = 0;
    *context = params->context;
    if (params->function)
        return ask(params->function, OF_A_CONTEXT, 0, &bytes) ? bytes : 0;
    return params->kernel && context_current(&where) && ask(params->kernel, OF_NONE, where.device, &bytes) ? bytes : 0;
}

static CUresult reserve_in(CUcontext context, uint64_t bytes) {
    struct current_context where;
    CUcontext current = NULL, popped;
    if (bytes <= SETTING_LOCAL_OWN || vcuda_attached() != VCUDA_ATTACHED)
        return CUDA_SUCCESS;
    bool elsewhere = context && real.cuCtxGetCurrent(&current) == CUDA_SUCCESS && context != current &&
                     real.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
    CUresult result = context_current(&where) && where.card >= 0 ? setting_local(&where, bytes) : CUDA_SUCCESS;
    if (elsewhere)
        real.cuCtxPopCurrent_v2(&popped);
    return result;
}

static CUresult params_of(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params) {
    *params = (CUDA_KERNEL_NODE_PARAMS){.function = NULL};
    return real_has(cuGraphKernelNodeGetParams_v2) ? real.cuGraphKernelNodeGetParams_v2(node, params)
                                                   : real.cuGraphKernelNodeGetParams(node, params);
}

/* The largest kernel of each run of nodes of one context: graphs of several devices have more than one. */
struct largest {
    CUcontext context;
    uint64_t bytes;
    const void *asked; /* the last function, which often comes again */
    CUresult result;
};

static void look_at(struct largest *largest, const CUDA_KERNEL_NODE_PARAMS *params) {
    const void *function = params->function ? (const void *)params->function : (const void *)params->kernel;
    if (!function || (function == largest->asked && params->context == largest->context))
        return;
    CUcontext context;
    uint64_t bytes = node_bytes(params, &context);
    if (context != largest->context) {
        largest->result = largest->result ? largest->result : reserve_in(largest->context, largest->bytes);
        largest->context = context;
        largest->bytes = 0;
    }
    largest->asked = function;
    largest->bytes = bytes > largest->bytes ? bytes : largest->bytes;
}

static void look_into(struct largest *largest, CUgraph graph, int depth) {
    CUDA_KERNEL_NODE_PARAMS params;
    size_t count = 0;
    CUgraphNode *nodes = NULL;
    if (depth > DEEPEST || !graph || real.cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS || !count ||
        !(nodes = malloc(count * sizeof(CUgraphNode))) || real.cuGraphGetNodes(graph, nodes, &count) != CUDA_SUCCESS)
        count = 0;
    for (size_t i = 0; i < count; i++) {
        int type = -1;
        CUgraph child = NULL;
        if (real.cuGraphNodeGetType(nodes[i], &type) != CUDA_SUCCESS)
            continue;
        if (type == CU_GRAPH_NODE_TYPE_GRAPH && real.cuGraphChildGraphNodeGetGraph(nodes[i], &child) == CUDA_SUCCESS)
            look_into(largest, child, depth + 1);
        else if (type == CU_GRAPH_NODE_TYPE_KERNEL && params_of(nodes[i], &params) == CUDA_SUCCESS)
            look_at(largest, &params);
    }
    free(nodes);
}

CUresult local_graph(CUgraph graph) {
    struct largest largest = {.context = NULL};
    if (vcuda_attached() != VCUDA_ATTACHED)
        return CUDA_SUCCESS;
    look_into(&largest, graph, 0);
    return largest.result ? largest.result : reserve_in(largest.context, largest.bytes);
}

CUresult local_node(const CUDA_KERNEL_NODE_PARAMS *params, bool is_whole) {
    CUDA_KERNEL_NODE_PARAMS known = {.function = NULL};
    CUcontext context;
    if (!params)
        return CUDA_SUCCESS;
    known.function = params->function;
    known.kernel = is_whole ? params->kernel : NULL;
    known.context = is_whole ? params->context : NULL;
    uint64_t bytes = node_bytes(&known, &context);
    return reserve_in(context, bytes);
}

CUresult hook_cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                             const CUDA_KERNEL_NODE_PARAMS *params) {
    CUresult denied = local_node(params, false);
    return denied != CUDA_SUCCESS ? denied : real.cuGraphExecKernelNodeSetParams(exec, node, params);
}

CUresult hook_cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                                const CUDA_KERNEL_NODE_PARAMS *params) {
    CUresult denied = local_node(params, true);
    return denied != CUDA_SUCCESS ? denied : real.cuGraphExecKernelNodeSetParams_v2(exec, node, params);
}

CUresult hook_cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *params) {
    bool is_kernel = params && params->type == CU_GRAPH_NODE_TYPE_KERNEL;
    CUresult denied = is_kernel ? local_node(&params->kernel, true) : CUDA_SUCCESS;
    return denied != CUDA_SUCCESS ? denied : real.cuGraphExecNodeSetParams(exec, node, params);
}
