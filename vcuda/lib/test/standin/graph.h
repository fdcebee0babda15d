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

int64_t node_length(const CUgraphNodeParams *params);
void node_set_kernel(struct node *node, const CUDA_KERNEL_NODE_PARAMS *params, bool short_form);

#endif
