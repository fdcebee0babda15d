/* The peak of graphs on stdin: "nodes edges steps", a change of each node, "from to" of each edge; for each graph a
 * line "peak exact". tests/native/test_memory_graph_peak.py asks it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda/graph_peak.h"

int main(void) {
    size_t nodes, edges;
    uint64_t steps;
    while (scanf("%zu %zu %" SCNu64, &nodes, &edges, &steps) == 3) {
        int64_t *change = calloc(nodes + 1, sizeof *change);
        struct graph_edge *edge = calloc(edges + 1, sizeof *edge);
        if (!change || !edge)
            return 1;
        for (size_t i = 0; i < nodes; i++)
            if (scanf("%" SCNd64, &change[i]) != 1)
                return 1;
        for (size_t i = 0; i < edges; i++)
            if (scanf("%" SCNu32 " %" SCNu32, &edge[i].from, &edge[i].to) != 2)
                return 1;
        bool exact;
        uint64_t peak = graph_peak(change, nodes, edge, edges, steps, &exact);
        printf("%" PRIu64 " %d\n", peak, exact);
        free(change);
        free(edge);
    }
    return 0;
}
