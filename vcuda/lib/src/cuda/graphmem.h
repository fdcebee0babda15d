/* Charges the memory that a graph's allocation nodes take when it is launched or uploaded. */
#ifndef VCUDA_GRAPHMEM_H
#define VCUDA_GRAPHMEM_H

#include <stdbool.h>

#include "cu_types.h"
#include "cuda/allocation_table.h"
#include "cuda/graph_pool.h"

struct graph_profile;

/* A launch or upload between graphmem_begin() and graphmem_end(); `pool` is NULL if it takes no memory. */
struct graph_launch {
    struct graph_pool *pool;
    const struct graph_profile *profile;
    struct graph_stream stream;
    struct graph_step step;
};

/* Reserve what a launch may take, before it is made. A result other than CUDA_SUCCESS is what the hook returns. A
 * process without such graphs pays one read of a flag; a graph without memory nodes one lookup. */
CUresult graphmem_begin(struct graph_launch *launch, CUgraphExec exec, CUstream stream, bool per_thread);

/* After the launch: record the allocations that it leaves, and charge the present memory of the device's graphs. */
void graphmem_end(struct graph_launch *launch, CUresult result);

/* A graph's allocation was freed in the order of this stream. */
void graphmem_freed_behind(const struct allocation *item, CUstream stream, bool per_thread);

#endif
