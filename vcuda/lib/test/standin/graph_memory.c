/*
 * Memory of graphs: a pool of the device, grown at launch and upload, given back by cuDeviceGraphMemTrim.
 *
 * A launch binds pages for the most that its allocations can hold at once in any order that its edges allow. Launches
 * of one stream follow one another and share pages; those of several streams may run at the same time and share none;
 * what no call has freed shares none. A launch's pages are free again once the card has run it. Graphs with host
 * functions are taken to have run at once.
 */
#include <stdlib.h>
#include <string.h>

#include "graph.h"

struct graph_run {
    struct graph_run *next;
    uint64_t stream;
    int64_t end, bytes; /* what it holds beyond what it leaves allocated */
};

static const struct step *freed_in(const struct graph_exec *exec, uint64_t pointer) {
    for (int at = 0; at < exec->count; at++)
        if (exec->steps[at].params.type == NODE_MEM_FREE && exec->steps[at].params.free == pointer)
            return &exec->steps[at];
    return NULL;
}

static const struct step *allocated_in(const struct graph_exec *exec, uint64_t pointer) {
    for (int at = 0; at < exec->count; at++)
        if (exec->steps[at].params.type == NODE_MEM_ALLOC && exec->steps[at].params.alloc.pointer == pointer)
            return &exec->steps[at];
    return NULL;
}

static int64_t bytes_of(const struct step *step) {
    return granules((int64_t)step->params.alloc.bytes);
}

/* By how much a step changes what its graph's own allocations hold. */
static int64_t change(const struct graph_exec *exec, const struct step *step) {
    if (step->params.type == NODE_MEM_ALLOC)
        return bytes_of(step);
    const struct step *own = step->params.type == NODE_MEM_FREE ? allocated_in(exec, step->params.free) : NULL;
    return own ? -bytes_of(own) : 0;
}

/* ---- the peak: sum of allocations, less what of them can surely be given to a later one
 * ------------------------------- */

enum { EXACT = 192 }; /* steps; a larger graph is laid out for the order in which its steps stand */

struct cut {
    int count;
    int64_t *left;   /* of an allocation: not yet given memory; of a free: not yet given away */
    int64_t *pushed; /* pushed[from * count + to]: along the edge from a step to one that it waits for */
    int *from;
    bool *seen;
};

/* From one step to those that it must wait for, and back along what was pushed: to a free with memory left. */
static int64_t push(const struct graph_exec *exec, struct cut *cut, int start) {
    int *queue = cut->from + cut->count, head = 0, tail = 0, here = -1;
    memset(cut->seen, 0, (size_t)cut->count * sizeof *cut->seen);
    cut->seen[start] = true;
    queue[tail++] = start;
    cut->from[start] = -1;
    while (head < tail) {
        here = queue[head++];
        if (cut->left[here] < 0)
            break;
        for (int at = 0; at < exec->steps[here].dep_count; at++) {
            int there = exec->steps[here].deps[at];
            if (!cut->seen[there]) {
                cut->seen[there] = true;
                cut->from[there] = here;
                queue[tail++] = there;
            }
        }
        for (int there = 0; there < cut->count; there++)
            if (!cut->seen[there] && cut->pushed[there * cut->count + here] > 0) {
                cut->seen[there] = true;
                cut->from[there] = here;
                queue[tail++] = there;
            }
        here = -1;
    }
    if (here < 0)
        return 0;
    int64_t most = cut->left[start] < -cut->left[here] ? cut->left[start] : -cut->left[here];
    for (int to = here; cut->from[to] >= 0; to = cut->from[to]) {
        int64_t back = cut->pushed[to * cut->count + cut->from[to]];
        if (back > 0 && back < most)
            most = back;
    }
    for (int to = here; cut->from[to] >= 0; to = cut->from[to]) {
        int64_t *back = &cut->pushed[to * cut->count + cut->from[to]];
        if (*back > 0)
            *back -= most;
        else
            cut->pushed[cut->from[to] * cut->count + to] += most;
    }
    cut->left[start] -= most;
    cut->left[here] += most;
    return most;
}

static int64_t peak_of_line(const struct graph_exec *exec) {
    int64_t live = 0, most = 0;
    for (int at = 0; at < exec->count; at++) {
        live += change(exec, &exec->steps[at]);
        most = live > most ? live : most;
    }
    return most;
}

int64_t graph_memory_peak(const struct graph_exec *exec) {
    size_t count = (size_t)exec->count;
    if (count > EXACT)
        return peak_of_line(exec);
    struct cut cut = {.count = exec->count,
                      .left = calloc(count + 1, sizeof *cut.left),
                      .pushed = calloc(count * count + 1, sizeof *cut.pushed),
                      .from = calloc(2 * count + 1, sizeof *cut.from),
                      .seen = calloc(count + 1, sizeof *cut.seen)};
    int64_t peak = 0;
    if (cut.left && cut.pushed && cut.from && cut.seen) {
        for (int at = 0; at < exec->count; at++)
            peak += (cut.left[at] = change(exec, &exec->steps[at])) > 0 ? cut.left[at] : 0;
        for (int at = 0; at < exec->count; at++)
            for (int64_t pushed; cut.left[at] > 0 && (pushed = push(exec, &cut, at));)
                peak -= pushed;
    }
    free(cut.left);
    free(cut.pushed);
    free(cut.from);
    free(cut.seen);
    return peak;
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

static uint64_t name_of(const struct stream *stream) {
    return stream->id ? stream->id : stream->context->id << 32;
}

/* Those that have ended go. The greatest that runs in each other stream is what cannot be shared. */
static int64_t held_by_others(struct device *device, uint64_t stream) {
    int64_t bytes = 0;
    for (struct graph_run **at = &device->graph_runs; *at;) {
        struct graph_run *run = *at;
        if (exec_reached(device, run->end)) {
            *at = run->next;
            free(run);
        } else {
            at = &run->next;
        }
    }
    for (struct graph_run *run = device->graph_runs; run; run = run->next) {
        bool greatest = run->stream != stream;
        for (struct graph_run *other = device->graph_runs; other && greatest; other = other->next)
            greatest = other->stream != run->stream || other->bytes < run->bytes ||
                       (other->bytes == run->bytes && other >= run);
        bytes += greatest ? run->bytes : 0;
    }
    return bytes;
}

static bool reserve(struct device *device, int64_t wanted) {
    if (wanted > device->graph_reserved) {
        if (!device_charge(device, wanted - device->graph_reserved))
            return false;
        device->graph_reserved = wanted;
    }
    if (device->graph_reserved > device->graph_reserved_high)
        device->graph_reserved_high = device->graph_reserved;
    return true;
}

/* May it run? Its own allocations are freed, or freed now; what it frees of other graphs is allocated. */
static bool is_ready(struct graph_exec *exec) {
    for (int at = 0; at < exec->count; at++) {
        const CUgraphNodeParams *params = &exec->steps[at].params;
        bool own = params->type == NODE_MEM_ALLOC;
        struct memory *memory = own                             ? map_find((uintptr_t)params->alloc.pointer)
                                : params->type == NODE_MEM_FREE ? map_find((uintptr_t)params->free)
                                                                : NULL;
        if (own && memory && !(exec->flags & FREE_ON_LAUNCH))
            return false;
        if (params->type == NODE_MEM_FREE && !memory && !allocated_in(exec, params->free))
            return false;
    }
    return true;
}

static int64_t leave(struct graph_exec *exec) {
    struct device *device = exec->context->device;
    int64_t left = 0;
    for (int at = 0; at < exec->count; at++) {
        const struct step *step = &exec->steps[at];
        struct memory *memory = step->params.type == NODE_MEM_FREE ? map_find((uintptr_t)step->params.free) : NULL;
        if (memory && (memory->kind == GRAPH || memory->kind == ASYNC))
            memory_release(memory);
        if (step->params.type != NODE_MEM_ALLOC || freed_in(exec, step->params.alloc.pointer))
            continue;
        left += bytes_of(step);
        map_add((struct memory){.base = (uintptr_t)step->params.alloc.pointer,
                                .bytes = step->params.alloc.bytes,
                                .kind = GRAPH,
                                .device = device});
    }
    device->graph_used += left;
    return left;
}

CUresult graph_memory_take(struct graph_exec *exec, const struct stream *stream) {
    struct device *device = exec->context->device;
    if (!is_ready(exec))
        return CUDA_ERROR_INVALID_VALUE;
    for (int at = 0; at < exec->count; at++) {
        struct memory *again = exec->steps[at].params.type == NODE_MEM_ALLOC
                                   ? map_find((uintptr_t)exec->steps[at].params.alloc.pointer)
                                   : NULL;
        if (again)
            memory_release(again);
    }
    int64_t wanted = device->graph_used + exec->peak;
    if (exec->peak && !reserve(device, wanted + held_by_others(device, name_of(stream))))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (wanted > device->graph_used_high)
        device->graph_used_high = wanted;
    leave(exec);
    return CUDA_SUCCESS;
}

void graph_memory_runs(struct graph_exec *exec, const struct stream *stream, int64_t end) {
    int64_t bytes = exec->peak;
    for (int at = 0; at < exec->count; at++)
        if (exec->steps[at].params.type == NODE_MEM_ALLOC && !freed_in(exec, exec->steps[at].params.alloc.pointer))
            bytes -= bytes_of(&exec->steps[at]);
    struct device *device = exec->context->device;
    struct graph_run *run = bytes > 0 ? malloc(sizeof *run) : NULL;
    if (!run)
        return;
    *run = (struct graph_run){device->graph_runs, name_of(stream), end, bytes};
    device->graph_runs = run;
}

/* What it left allocated has its pages already. */
CUresult graph_memory_map(struct graph_exec *exec) {
    struct device *device = exec->context->device;
    int64_t mapped = 0;
    for (int at = 0; at < exec->count; at++)
        if (exec->steps[at].params.type == NODE_MEM_ALLOC && map_find((uintptr_t)exec->steps[at].params.alloc.pointer))
            mapped += bytes_of(&exec->steps[at]);
    return reserve(device, device->graph_used + exec->peak - mapped) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The last context of the device is gone, and all memory with it. */
void graph_memory_forget(struct device *device) {
    while (device->graph_runs) {
        struct graph_run *run = device->graph_runs;
        device->graph_runs = run->next;
        free(run);
    }
    for (struct memory *memory; (memory = map_of_graphs(device));)
        memory_release(memory);
    device_charge(device, -device->graph_reserved);
    device->graph_reserved = device->graph_used = 0;
}

CUresult model_cuDeviceGraphMemTrim(CUdevice ordinal) {
    struct device *device = device_of(ordinal);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    process_lock();
    int64_t needed = device->graph_used + held_by_others(device, 0);
    if (needed < device->graph_reserved) {
        device_charge(device, needed - device->graph_reserved);
        device->graph_reserved = needed;
    }
    process_unlock();
    return CUDA_SUCCESS;
}

CUresult model_cuDeviceGetGraphMemAttribute(CUdevice ordinal, int attribute, void *value) {
    struct device *device = device_of(ordinal);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!value || attribute < 0 || attribute > 3)
        return CUDA_ERROR_INVALID_VALUE;
    const int64_t values[] = {device->graph_used, device->graph_used_high, device->graph_reserved,
                              device->graph_reserved_high};
    *(uint64_t *)value = (uint64_t)values[attribute];
    return CUDA_SUCCESS;
}

CUresult model_cuDeviceSetGraphMemAttribute(CUdevice ordinal, int attribute, void *value) {
    struct device *device = device_of(ordinal);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!value || (attribute != 1 && attribute != 3))
        return CUDA_ERROR_INVALID_VALUE; /* only the high marks, and only to reset them */
    if (attribute == 1)
        device->graph_used_high = device->graph_used;
    else
        device->graph_reserved_high = device->graph_reserved;
    return CUDA_SUCCESS;
}
