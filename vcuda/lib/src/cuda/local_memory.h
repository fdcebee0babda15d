/* Local memory of kernels: what does not fit into registers, for every thread that can be resident on the card.
 *
 * A context has so much of it a thread as its stack limit says, and takes more at the first launch of a kernel that
 * needs more, without a call that names a size; the largest kernel counts, not the sum, and nothing is given back
 * before the context ends. So a function is marked when the program gets it, and asked for its size at its first
 * launch, which loads it anyway. A launch looks at the mark.
 */
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

/* May this launch take more? No in nearly all cases, for a few instructions. */
static inline bool local_may_grow(const void *function) {
    return __builtin_expect(__atomic_load_n(&local_marked, __ATOMIC_RELAXED) != 0, 0) &&
           __atomic_load_n(&local_marks[local_place(function)], __ATOMIC_RELAXED);
}

/* Charge what the launch takes, if it does. CUDA_ERROR_OUT_OF_MEMORY where the limit has no room: it is to be refused,
 * with what the driver returns on a full card. */
CUresult local_launch(const void *function, CUstream stream, bool per_thread);

/* The same for the kernels of a graph that is about to become executable, and for one that a node of such a graph is
 * about to launch instead of its own: the parameters of the node. */
CUresult local_graph(CUgraph graph);
CUresult local_node(const CUDA_KERNEL_NODE_PARAMS *params, bool is_whole);

#endif
