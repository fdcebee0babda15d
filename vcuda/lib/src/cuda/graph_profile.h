/* The effect of a graph's launches on memory, read from the graph when it is instantiated. */
#ifndef VCUDA_GRAPH_PROFILE_H
#define VCUDA_GRAPH_PROFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cu_types.h"

/* Memory of an allocation node that no node of its graph frees. */
struct graph_unfreed {
    CUdeviceptr at;
    uint64_t bytes;
};

struct graph_profile {
    uint64_t peak; /* bytes that its own allocations can hold at once; UINT64_MAX if it could not be read */
    struct graph_unfreed *unfreed;
    size_t unfreed_count;
    CUdeviceptr *freed; /* allocations of other graphs that it frees */
    size_t freed_count;
};

/* Read a graph and its child graphs. NULL if it has no memory nodes; also NULL, with *readable false, if there is no
 * memory for the profile. */
struct graph_profile *graph_profile_read(CUgraph graph, bool *readable);

void graph_profile_free(struct graph_profile *profile);

#endif
