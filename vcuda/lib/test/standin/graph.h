/* Graphs, as graph.c builds them and exec_graph.c runs them. */
#ifndef STANDIN_GRAPH_H
#define STANDIN_GRAPH_H

#include "process.h"

struct node {
    struct graph *graph;
    struct node *next;
    uint64_t id;
    CUgraphNodeParams params;
    int64_t length; /* GPU time, known when the node is made */
    bool alone, seen;
    struct node **deps;
    size_t dep_count;
    uint32_t first_param; /* launch parameters are read at the call, as CUDA does */
    void *param_pointer;
};

struct graph {
    struct node *nodes, **end;
    uint64_t id;
    struct context *context;
};

/* A node as it will run. Steps stand in an order in which every dependency comes first. */
struct step {
    const struct node *source;
    CUgraphNodeParams params;
    int64_t length, end;
    bool alone, enabled;
    int *deps;
    int dep_count;
};

struct graph_exec {
    struct context *context;
    struct step *steps;
    int count;
    uint64_t id, flags;
    int64_t peak; /* bytes that its allocations can hold at once */
    bool has_host;
};

enum { FREE_ON_LAUNCH = 1, UPLOAD = 2 };

/* graph_memory.c: the process lock must be held */
int64_t graph_memory_peak(const struct graph_exec *exec);
CUresult graph_memory_take(struct graph_exec *exec, const struct stream *stream);
void graph_memory_runs(struct graph_exec *exec, const struct stream *stream, int64_t end);
CUresult graph_memory_map(struct graph_exec *exec);
void graph_memory_forget(struct device *device);

int64_t node_length(const CUgraphNodeParams *params);
void node_set_kernel(struct node *node, const CUDA_KERNEL_NODE_PARAMS *params, bool short_form);

#endif
