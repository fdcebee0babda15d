/* A graph is read into one flat list of nodes. A child graph runs between two nodes that do nothing: one behind what
 * the child waits for, one before what waits for the child. */
#include "cuda/graph_profile.h"

#include <stdlib.h>

#include "cuda/account.h"
#include "cuda/graph_peak.h"
#include "cuda/span_hold.h"
#include "interposer.h"

/* Graphs in graphs in graphs: deeper ones than this count as endless. */
#define DEEPEST 32

/* Edges looked at in search of the peak: some 100 ms. Graphs of thousands of nodes need a hundredth of it; one that
 * needs more is charged an upper bound. */
#define STEPS 20000000u

struct node {
    CUdeviceptr at; /* of an allocation or a free; 0: neither */
    uint64_t bytes; /* of an allocation; 0: a free */
};

struct reading {
    struct node *nodes;
    struct graph_edge *edges;
    size_t node_count, node_room, edge_count, edge_room, memory_nodes;
    bool failed;
};

/* A list's memory for one more item; NULL, and the reading has failed, without memory. */
static void *room_for(struct reading *reading, void *items, size_t size, size_t count, size_t *room) {
    if (count < *room)
        return items;
    size_t more = *room ? *room * 2 : 64;
    void *grown = more > UINT32_MAX / 4 ? NULL : realloc(items, more * size);
    if (grown)
        *room = more;
    reading->failed |= !grown;
    return grown;
}

static uint32_t add_node(struct reading *reading, struct node node) {
    struct node *nodes = room_for(reading, reading->nodes, sizeof *nodes, reading->node_count, &reading->node_room);
    if (!nodes)
        return 0;
    reading->nodes = nodes;
    reading->memory_nodes += node.at != 0;
    nodes[reading->node_count] = node;
    return (uint32_t)reading->node_count++;
}

static void add_edge(struct reading *reading, uint32_t from, uint32_t to) {
    struct graph_edge *edges =
        room_for(reading, reading->edges, sizeof *edges, reading->edge_count, &reading->edge_room);
    if (!edges)
        return;
    reading->edges = edges;
    edges[reading->edge_count++] = (struct graph_edge){from, to};
}

/* Where a node of the graph stands in the flat list. */
struct place {
    CUgraphNode node;
    uint32_t first, last;
};

static int by_node(const void *left, const void *right) {
    uintptr_t a = (uintptr_t)((const struct place *)left)->node, b = (uintptr_t)((const struct place *)right)->node;
    return (a > b) - (a < b);
}

static void read_graph(struct reading *reading, CUgraph graph, int depth);

/* Everything of the child between two nodes of its own. */
static struct place read_child(struct reading *reading, CUgraphNode node, int depth) {
    CUgraph child = NULL;
    reading->failed |= real.cuGraphChildGraphNodeGetGraph(node, &child) != CUDA_SUCCESS;
    uint32_t begin = add_node(reading, (struct node){0});
    read_graph(reading, child, depth + 1);
    uint32_t end = add_node(reading, (struct node){0});
    add_edge(reading, begin, end);
    for (uint32_t inner = begin + 1; !reading->failed && inner < end; inner++) {
        add_edge(reading, begin, inner);
        add_edge(reading, inner, end);
    }
    return (struct place){node, begin, end};
}

/* One that calls the host keeps launches from being held, as a host function on a stream does. */
static struct place read_node(struct reading *reading, CUgraphNode node, int depth) {
    int type = -1;
    struct node flat = {0};
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.bytes = 0};
    reading->failed |= real.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS;
    if (type == CU_GRAPH_NODE_TYPE_HOST)
        span_hold_no_more();
    if (type == CU_GRAPH_NODE_TYPE_GRAPH)
        return read_child(reading, node, depth);
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
        reading->failed |= real.cuGraphMemAllocNodeGetParams(node, &params) != CUDA_SUCCESS;
        flat = (struct node){params.pointer, granules(params.bytes)};
    } else if (type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
        reading->failed |= real.cuGraphMemFreeNodeGetParams(node, &flat.at) != CUDA_SUCCESS;
    }
    uint32_t place = add_node(reading, flat);
    return (struct place){node, place, place};
}

/* The older function does not tell of edges that carry data, as those of programmatic launches do. */
static CUresult get_edges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count) {
    size_t all = *count;
    CUresult result = real.cuGraphGetEdges(graph, from, to, count);
    if (result == CUDA_SUCCESS || !real_has(cuGraphGetEdges_v2))
        return result;
    uint64_t *data = from ? malloc((all + 1) * sizeof *data) : NULL;
    if (from && !data)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *count = all;
    result = real.cuGraphGetEdges_v2(graph, from, to, data, count);
    free(data);
    return result;
}

/* Without its edges a graph may run in any order: then its peak is the sum of its allocations. */
static void read_edges(struct reading *reading, CUgraph graph, const struct place *places, size_t node_count) {
    size_t count = 0;
    CUgraphNode *ends = NULL;
    if (get_edges(graph, NULL, NULL, &count) != CUDA_SUCCESS || !count ||
        !(ends = malloc(2 * count * sizeof(CUgraphNode))) ||
        get_edges(graph, ends, ends + count, &count) != CUDA_SUCCESS)
        count = 0;
    for (size_t i = 0; i < count && !reading->failed; i++) {
        struct place from = {.node = ends[i]}, to = {.node = ends[count + i]};
        const struct place *left = bsearch(&from, places, node_count, sizeof *places, by_node);
        const struct place *right = bsearch(&to, places, node_count, sizeof *places, by_node);
        if (left && right)
            add_edge(reading, left->last, right->first);
    }
    free(ends);
}

static void read_graph(struct reading *reading, CUgraph graph, int depth) {
    size_t count = 0;
    if (!graph || reading->failed)
        return;
    if (depth > DEEPEST || real.cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS) {
        reading->failed = true;
        return;
    }
    if (!count)
        return;
    CUgraphNode *nodes = malloc(count * sizeof(CUgraphNode));
    struct place *places = malloc(count * sizeof *places);
    reading->failed |= !nodes || !places || real.cuGraphGetNodes(graph, nodes, &count) != CUDA_SUCCESS;
    size_t before = reading->memory_nodes;
    for (size_t i = 0; i < count && !reading->failed; i++)
        places[i] = read_node(reading, nodes[i], depth);
    if (!reading->failed && reading->memory_nodes > before) {
        qsort(places, count, sizeof *places, by_node);
        read_edges(reading, graph, places, count);
    }
    free(nodes);
    free(places);
}

/* ---- the profile of what was read -------------------------------------------------------------------------------- */

/* Each node's number in an order that the edges allow; false without memory, or if they allow none. */
static bool number_in_order(const struct reading *reading, uint32_t *number) {
    size_t nodes = reading->node_count, edges = reading->edge_count, ready = 0, done = 0;
    uint32_t *memory = calloc(3 * nodes + edges + 1, sizeof *memory);
    if (!memory)
        return false;
    uint32_t *before = memory, *queue = before + nodes, *first = queue + nodes, *next = first + nodes;
    for (uint32_t i = 0; i < edges; i++) { /* lists of edges by where they come from; 0 ends one */
        before[reading->edges[i].to]++;
        next[i] = first[reading->edges[i].from];
        first[reading->edges[i].from] = i + 1;
    }
    for (uint32_t node = 0; node < nodes; node++)
        if (!before[node])
            queue[ready++] = node;
    for (; done < ready; done++) {
        number[queue[done]] = (uint32_t)done;
        for (uint32_t edge = first[queue[done]]; edge; edge = next[edge - 1])
            if (!--before[reading->edges[edge - 1].to])
                queue[ready++] = reading->edges[edge - 1].to;
    }
    free(memory);
    return done == nodes;
}

/* A memory node by the address that it allocates or frees. */
struct by_address {
    CUdeviceptr at;
    uint64_t bytes;
    uint32_t node, number;
};

static int by_address(const void *left, const void *right) {
    const struct by_address *a = left, *b = right;
    if (a->at != b->at)
        return a->at < b->at ? -1 : 1;
    return (a->number > b->number) - (a->number < b->number);
}

/* The memory nodes sorted by address, each allocation before its free. The driver may give an address to several
 * allocations of a graph that follow one another: hence the order in which they run. */
static struct by_address *sorted(const struct reading *reading) {
    struct by_address *list = malloc(reading->memory_nodes * sizeof *list);
    uint32_t *number = malloc(reading->node_count * sizeof *number);
    size_t count = 0;
    if (!list || !number || !number_in_order(reading, number)) {
        free(list);
        free(number);
        return NULL;
    }
    for (uint32_t node = 0; node < reading->node_count; node++)
        if (reading->nodes[node].at)
            list[count++] =
                (struct by_address){reading->nodes[node].at, reading->nodes[node].bytes, node, number[node]};
    qsort(list, count, sizeof *list, by_address);
    free(number);
    return list;
}

/* Fill what is unfreed, what is freed of other graphs', and by how much each node changes what is live. */
static void fill(struct graph_profile *profile, int64_t *change, const struct by_address *list, size_t count) {
    for (size_t i = 0; i < count; i++) {
        bool is_freed = i + 1 < count && list[i].bytes && list[i + 1].at == list[i].at && !list[i + 1].bytes;
        change[list[i].node] = (int64_t)list[i].bytes;
        if (is_freed) {
            change[list[i + 1].node] = -(int64_t)list[i].bytes;
            i++;
        } else if (list[i].bytes) {
            profile->unfreed[profile->unfreed_count++] = (struct graph_unfreed){list[i].at, list[i].bytes};
        } else {
            profile->freed[profile->freed_count++] = list[i].at;
        }
    }
}

static struct graph_profile *profile_of(const struct reading *reading) {
    struct graph_profile *profile = calloc(1, sizeof *profile);
    struct by_address *list = sorted(reading);
    int64_t *change = calloc(reading->node_count, sizeof *change);
    bool exact, whole = profile && list && change;
    if (profile) {
        profile->unfreed = malloc(reading->memory_nodes * sizeof *profile->unfreed);
        profile->freed = malloc(reading->memory_nodes * sizeof *profile->freed);
        whole = whole && profile->unfreed && profile->freed;
    }
    if (whole) {
        fill(profile, change, list, reading->memory_nodes);
        profile->peak = graph_peak(change, reading->node_count, reading->edges, reading->edge_count, STEPS, &exact);
    } else {
        graph_profile_free(profile);
        profile = NULL;
    }
    free(list);
    free(change);
    return profile;
}

struct graph_profile *graph_profile_read(CUgraph graph, bool *readable) {
    struct reading reading = {0};
    struct graph_profile *profile = NULL;
    read_graph(&reading, graph, 0);
    *readable = !reading.failed;
    if (!reading.failed && reading.memory_nodes) {
        profile = profile_of(&reading);
        *readable = profile != NULL;
    }
    free(reading.nodes);
    free(reading.edges);
    return profile;
}

void graph_profile_free(struct graph_profile *profile) {
    if (profile) {
        free(profile->unfreed);
        free(profile->freed);
    }
    free(profile);
}
