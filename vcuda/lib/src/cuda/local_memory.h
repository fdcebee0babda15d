/* Local memory of kernels: data that does not fit into registers, for every thread that can be resident on the card.
 *
 * A context starts with its stack limit's worth of local memory per thread. It takes more at the first launch of a
 * kernel that needs more, without a call that names a size; the largest kernel counts, not the sum, and nothing is
 * returned before the context ends. So a function is marked when the program obtains it, and its size is queried at its
 * first launch, which loads the function anyway. A launch reads only the mark. */
#ifndef VCUDA_LOCAL_MEMORY_H
#define VCUDA_LOCAL_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "cu_types.h"

#define LOCAL_MARKS (1u << 14)

extern uint16_t local_marks[LOCAL_MARKS]; /* marked functions by a hash of their handles */
extern uint32_t local_marked;             /* how many there are */

static inline unsigned local_place(const void *function) {
    return (unsigned)((uint64_t)(uintptr_t)function * UINT64_C(0x9e3779b97f4a7c15) >> 50);
}

/* True if this launch may take more local memory. A few instructions in nearly all cases. */
static inline bool local_may_grow(const void *function) {
    return __builtin_expect(__atomic_load_n(&local_marked, __ATOMIC_RELAXED) != 0, 0) &&
           __atomic_load_n(&local_marks[local_place(function)], __ATOMIC_RELAXED);
}

/* Charge the local memory that the launch adds. CUDA_ERROR_OUT_OF_MEMORY if the limit has no room: the hook then
 * refuses the launch with the error of a full card. */
CUresult local_launch(const void *function, CUstream stream, bool per_thread);

/* Like local_launch(), for all kernels of a graph that is about to be instantiated, and for a kernel that replaces the
 * one of a graph node (`params`: the node's new parameters). */
CUresult local_graph(CUgraph graph);
CUresult local_node(const CUDA_KERNEL_NODE_PARAMS *params, bool is_whole);

#endif
