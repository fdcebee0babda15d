/* Memory that a graph's allocation nodes take when it is launched or uploaded. */
#ifndef VCUDA_GRAPHMEM_H
#define VCUDA_GRAPHMEM_H

#include "cu_types.h"
#include "cuda/pool_account.h"

/* Before a launch or upload: reserve what its allocations may take. Anything but CUDA_SUCCESS is the hook's answer.
 * A graph without allocations costs a look into an empty table, or one look-up. */
CUresult graphmem_begin(struct pool_growth *growth, CUgraphExec exec);

/* After it: charge what the device's graphs have now. */
void graphmem_end(struct pool_growth *growth);

#endif
