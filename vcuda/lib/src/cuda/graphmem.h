/* Memory that a graph's allocation nodes take when it is launched or uploaded. */
#ifndef VCUDA_GRAPHMEM_H
#define VCUDA_GRAPHMEM_H

#include <stdbool.h>

#include "cu_types.h"
#include "cuda/allocation_table.h"
#include "cuda/graph_pool.h"

struct graph_profile;

/* A launch or upload on its way; without a pool it takes no memory. */
struct graph_launch {
    struct graph_pool *pool;
    const struct graph_profile *profile;
    struct graph_stream stream;
    struct graph_step step;
};

/* Before a launch: reserve what it may take. Anything but CUDA_SUCCESS is the hook's answer. A process without such
 * graphs pays a look at a flag; a graph without memory nodes costs one look-up. */
CUresult graphmem_begin(struct graph_launch *launch, CUgraphExec exec, CUstream stream, bool per_thread);

/* After it: remember what it leaves allocated, and charge what the device's graphs have now. */
void graphmem_end(struct graph_launch *launch, CUresult result);

/* A graph's allocation was freed behind the stream's work. */
void graphmem_freed_behind(const struct allocation *item, CUstream stream, bool per_thread);

#endif
