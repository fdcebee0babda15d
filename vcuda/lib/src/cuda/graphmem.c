/* Graphs allocate at launch, from a pool of the device that keeps what it has until it is trimmed. An executable graph
 * may take no more than the sum over its allocation nodes; that is found when it is made, and reserved before it runs.
 */
#include "cuda/graphmem.h"

#include <stdlib.h>
#include <string.h>

#include "attachment.h"
#include "cuda/account.h"
#include "cuda/allocation_table.h"
#include "cuda/context_registry.h"
#include "cuda/device_map.h"
#include "interposer.h"

/* Graphs in graphs in graphs: deeper ones than this count as endless. */
#define DEEPEST 32

static bool any_allocates; /* some graph of this process has allocation nodes */

static uint64_t plus(uint64_t left, uint64_t right) {
    uint64_t sum;
    return __builtin_add_overflow(left, right, &sum) ? UINT64_MAX : sum;
}

static uint64_t bytes_of_graph(CUgraph graph, int depth);

static uint64_t bytes_of_node(CUgraphNode node, int depth) {
    int type = -1;
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.bytes = 0};
    CUgraph child = NULL;
    real.cuGraphNodeGetType(node, &type);
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && real.cuGraphMemAllocNodeGetParams(node, &params) == CUDA_SUCCESS)
        return granules(params.bytes);
    if (type != CU_GRAPH_NODE_TYPE_GRAPH)
        return type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? UINT64_MAX : 0;
    if (real.cuGraphChildGraphNodeGetGraph(node, &child) != CUDA_SUCCESS)
        return UINT64_MAX; /* what cannot be looked into might take anything */
    return bytes_of_graph(child, depth + 1);
}

static uint64_t bytes_of_graph(CUgraph graph, int depth) {
    size_t count = 0;
    if (depth > DEEPEST)
        return UINT64_MAX;
    if (!graph || real.cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS || !count)
        return 0;
    CUgraphNode *nodes = malloc(count * sizeof *nodes);
    if (!nodes)
        return UINT64_MAX;
    uint64_t bytes = 0;
    if (real.cuGraphGetNodes(graph, nodes, &count) == CUDA_SUCCESS)
        for (size_t i = 0; i < count; i++)
            bytes = plus(bytes, bytes_of_node(nodes[i], depth));
    free(nodes);
    return bytes;
}

/* The device is that of the context in which the graph was made executable: where its launches allocate. */
static CUresult made(CUresult result, CUgraphExec *out, CUgraph graph) {
    struct current_context where;
    struct allocation old;
    if (result != CUDA_SUCCESS || !out || vcuda_attached() != VCUDA_ATTACHED)
        return result;
    uint64_t bytes = bytes_of_graph(graph, 0);
    if (!bytes || !context_current(&where))
        return result;
    allocation_put(&(struct allocation){.key = (uint64_t)(uintptr_t)*out,
                                        .bytes = bytes,
                                        .count = (uint32_t)where.device,
                                        .card = (int8_t)where.card,
                                        .kind = ALLOCATION_EXEC},
                   &old);
    __atomic_store_n(&any_allocates, true, __ATOMIC_RELEASE);
    return result;
}

CUresult hook_cuGraphInstantiate(CUgraphExec *out, CUgraph graph, CUgraphNode *error, char *log, size_t size) {
    return made(real.cuGraphInstantiate(out, graph, error, log, size), out, graph);
}

CUresult hook_cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, CUgraphNode *error, char *log, size_t size) {
    return made(real.cuGraphInstantiate_v2(out, graph, error, log, size), out, graph);
}

CUresult hook_cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags) {
    return made(real.cuGraphInstantiateWithFlags(out, graph, flags), out, graph);
}

/* The first word of the parameters. */
static bool uploads(const void *params) {
    uint64_t flags = 0;
    if (params)
        memcpy(&flags, params, sizeof flags);
    return flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
}

/* One that is uploaded at once has its memory before it has a name. */
static CUresult begin_upload(struct pool_growth *growth, CUgraph graph, const void *params) {
    struct current_context where;
    *growth = (struct pool_growth){0};
    uint64_t bytes = uploads(params) && graph && vcuda_attached() == VCUDA_ATTACHED ? bytes_of_graph(graph, 0) : 0;
    if (!bytes || !context_current(&where))
        return CUDA_SUCCESS;
    struct pool_account *account = pool_account_of_graphs(where.device, where.card);
    return account ? pool_account_begin(growth, account, bytes) : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult with_params(CUresult (*make)(CUgraphExec *, CUgraph, void *), CUgraphExec *out, CUgraph graph,
                            void *params) {
    struct pool_growth growth;
    CUresult result = begin_upload(&growth, graph, params);
    if (result != CUDA_SUCCESS)
        return result;
    result = made(make(out, graph, params), out, graph);
    graphmem_end(&growth);
    return result;
}

CUresult hook_cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph, void *params) {
    return with_params(real.cuGraphInstantiateWithParams, out, graph, params);
}

CUresult hook_cuGraphInstantiateWithParams_ptsz(CUgraphExec *out, CUgraph graph, void *params) {
    return with_params(real.cuGraphInstantiateWithParams_ptsz, out, graph, params);
}

CUresult hook_cuGraphExecDestroy(CUgraphExec exec) {
    struct allocation item, old;
    bool known = __atomic_load_n(&any_allocates, __ATOMIC_ACQUIRE) &&
                 allocation_take(ALLOCATION_EXEC, (uint64_t)(uintptr_t)exec, &item);
    CUresult result = real.cuGraphExecDestroy(exec);
    if (known && result != CUDA_SUCCESS)
        allocation_put(&item, &old);
    return result;
}

CUresult graphmem_begin(struct pool_growth *growth, CUgraphExec exec) {
    struct allocation item;
    *growth = (struct pool_growth){0};
    if (!__atomic_load_n(&any_allocates, __ATOMIC_ACQUIRE) ||
        !allocation_get(ALLOCATION_EXEC, (uint64_t)(uintptr_t)exec, &item))
        return CUDA_SUCCESS;
    struct pool_account *account = pool_account_of_graphs((CUdevice)item.count, item.card);
    return account ? pool_account_begin(growth, account, item.bytes) : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The launch cannot be undone: what it took beyond the reservation is charged whatever the limit. */
void graphmem_end(struct pool_growth *growth) {
    if (growth->account && !pool_account_end(growth))
        pool_account_taken(growth);
}

CUresult hook_cuGraphUpload(CUgraphExec exec, CUstream stream) {
    struct pool_growth growth;
    CUresult result = graphmem_begin(&growth, exec);
    if (result != CUDA_SUCCESS)
        return result;
    result = real.cuGraphUpload(exec, stream);
    graphmem_end(&growth);
    return result;
}

CUresult hook_cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
    struct pool_growth growth;
    CUresult result = graphmem_begin(&growth, exec);
    if (result != CUDA_SUCCESS)
        return result;
    result = real.cuGraphUpload_ptsz(exec, stream);
    graphmem_end(&growth);
    return result;
}

CUresult hook_cuDeviceGraphMemTrim(CUdevice device) {
    CUresult result = real.cuDeviceGraphMemTrim(device);
    if (result == CUDA_SUCCESS && __atomic_load_n(&any_allocates, __ATOMIC_ACQUIRE))
        pool_account_settle_card(device_map_card(device));
    return result;
}
