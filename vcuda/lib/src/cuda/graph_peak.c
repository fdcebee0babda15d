/* The minimum cut by Dinic's algorithm: the source feeds each allocation with its size, each free drains as much into
 * the sink, and an allocation's flow may go to any free that must run before it, for that memory can be its own.
 *
 * What is not cut off is the peak: sum of allocations - greatest flow. A flow that is not yet the greatest leaves more,
 * so the search may stop at any time with an upper bound.
 */
#include "cuda/graph_peak.h"

#include <stdlib.h>
#include <string.h>

#define ENDLESS (INT64_MAX / 4)

/* Arc 2i and its reverse 2i + 1. */
struct network {
    uint32_t vertices, source, sink;
    uint32_t *first, *next, *target; /* first[vertex], next[arc]: lists of arcs; 0 ends one, so arcs count from 2 */
    int64_t *room;
    uint32_t arcs;
    int32_t *level;            /* distance from the source; -1: out of reach */
    uint32_t *queue, *current; /* current[vertex]: arcs before it lead nowhere any more */
    uint32_t *path;
    uint64_t steps;
};

static void add_arc(struct network *net, uint32_t from, uint32_t to, int64_t room) {
    uint32_t arc = net->arcs;
    net->arcs += 2;
    net->target[arc] = to;
    net->room[arc] = room;
    net->next[arc] = net->first[from];
    net->first[from] = arc;
    net->target[arc + 1] = from;
    net->room[arc + 1] = 0;
    net->next[arc + 1] = net->first[to];
    net->first[to] = arc + 1;
}

static bool spend(struct network *net) {
    if (!net->steps)
        return false;
    net->steps--;
    return true;
}

/* Distances from the source over arcs with room; false if the sink is out of reach. */
static bool find_levels(struct network *net) {
    uint32_t head = 0, tail = 0;
    memset(net->level, -1, net->vertices * sizeof *net->level);
    net->level[net->source] = 0;
    net->queue[tail++] = net->source;
    while (head < tail) {
        uint32_t here = net->queue[head++];
        for (uint32_t arc = net->first[here]; arc; arc = net->next[arc]) {
            uint32_t there = net->target[arc];
            if (!spend(net))
                return false;
            if (net->room[arc] > 0 && net->level[there] < 0) {
                net->level[there] = net->level[here] + 1;
                net->queue[tail++] = there;
            }
        }
    }
    return net->level[net->sink] >= 0;
}

/* One path of arcs with room that goes up a level at each: how much flows along it, 0 if there is none left. */
static int64_t push_path(struct network *net) {
    uint32_t length = 0, here = net->source;
    while (here != net->sink) {
        uint32_t arc = net->current[here];
        while (arc && !(net->room[arc] > 0 && net->level[net->target[arc]] == net->level[here] + 1)) {
            if (!spend(net))
                return 0;
            arc = net->next[arc];
        }
        net->current[here] = arc;
        if (arc) {
            net->path[length++] = arc;
            here = net->target[arc];
        } else if (length) {
            here = net->target[net->path[--length] ^ 1];
            net->current[here] = net->next[net->current[here]];
        } else {
            return 0;
        }
    }
    int64_t flow = ENDLESS;
    for (uint32_t i = 0; i < length; i++)
        flow = net->room[net->path[i]] < flow ? net->room[net->path[i]] : flow;
    for (uint32_t i = 0; i < length; i++) {
        net->room[net->path[i]] -= flow;
        net->room[net->path[i] ^ 1] += flow;
    }
    net->steps -= length < net->steps ? length : net->steps;
    return flow;
}

static int64_t greatest_flow(struct network *net) {
    int64_t total = 0;
    while (find_levels(net)) {
        memcpy(net->current, net->first, net->vertices * sizeof *net->current);
        for (int64_t flow; (flow = push_path(net));)
            total += flow;
    }
    return total;
}

static bool build(struct network *net, const int64_t *change, size_t nodes, const struct graph_edge *edges,
                  size_t edge_count) {
    size_t vertices = nodes + 2, arcs = 2 + 2 * (nodes + edge_count);
    if (arcs > UINT32_MAX / 2)
        return false;
    /* The wide ones first, so that all are aligned. */
    char *memory = calloc(1, arcs * (sizeof *net->room + 2 * sizeof *net->next) +
                                 vertices * (2 * sizeof *net->first + 3 * sizeof *net->queue));
    if (!memory)
        return false;
    net->room = (int64_t *)(void *)memory;
    net->next = (uint32_t *)(net->room + arcs);
    net->target = net->next + arcs;
    net->first = net->target + arcs;
    net->current = net->first + vertices;
    net->queue = net->current + vertices;
    net->path = net->queue + vertices;
    net->level = (int32_t *)(net->path + vertices);
    net->vertices = (uint32_t)vertices;
    net->source = (uint32_t)nodes;
    net->sink = (uint32_t)nodes + 1;
    net->arcs = 2;
    for (uint32_t node = 0; node < nodes; node++) {
        if (change[node] > 0)
            add_arc(net, net->source, node, change[node]);
        else if (change[node] < 0)
            add_arc(net, node, net->sink, -change[node]);
    }
    for (size_t i = 0; i < edge_count; i++)
        add_arc(net, edges[i].to, edges[i].from, ENDLESS);
    return true;
}

uint64_t graph_peak(const int64_t *change, size_t nodes, const struct graph_edge *edges, size_t edge_count,
                    uint64_t steps, bool *exact) {
    struct network net = {.steps = steps};
    uint64_t all = 0;
    bool frees = false;
    for (size_t node = 0; node < nodes; node++) {
        all += change[node] > 0 ? (uint64_t)change[node] : 0;
        frees |= change[node] < 0;
    }
    *exact = true;
    if (!frees || !all)
        return all;
    if (all > ENDLESS || !build(&net, change, nodes, edges, edge_count)) {
        *exact = false;
        return all;
    }
    uint64_t flow = (uint64_t)greatest_flow(&net);
    *exact = net.steps > 0;
    free(net.room);
    return all - flow;
}
