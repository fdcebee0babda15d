/* The most that a graph's allocations can hold at once, in any order that its edges allow. Arithmetic only: no driver
 * calls. */
#ifndef VCUDA_GRAPH_PEAK_H
#define VCUDA_GRAPH_PEAK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct graph_edge {
    uint32_t from, to; /* numbers of nodes: `to` runs after `from` */
};

/* `change[node]` is the change of live bytes at a node: its size for an allocation, minus the allocation's size for a
 * free, 0 for any other. The result is the greatest sum of changes over a set of nodes that contains all predecessors
 * of its members: a maximum-weight closure, found as a minimum cut (Picard, 1976).
 *
 * At most `steps` edges are visited. If they do not suffice, or if there is no memory for the search, *exact is false
 * and the result is an upper bound, at most the sum of all allocations. */
uint64_t graph_peak(const int64_t *change, size_t nodes, const struct graph_edge *edges, size_t edge_count,
                    uint64_t steps, bool *exact);

#endif
