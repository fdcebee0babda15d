/* Which allocation does an address belong to? Sorted by base, so that addresses inside are found too. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "process.h"

static struct memory **sorted;
static size_t count, room;

/* Index of the first allocation whose base lies above the address. */
static size_t above(uintptr_t address) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (sorted[middle]->base <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct memory *map_find(uintptr_t address) {
    size_t at = above(address);
    if (at == 0)
        return NULL;
    struct memory *memory = sorted[at - 1];
    return address - memory->base < memory->bytes ? memory : NULL;
}

struct memory *map_add(struct memory memory) {
    if (count == room) {
        size_t more = room ? room * 2 : 64;
        struct memory **grown = realloc(sorted, more * sizeof *grown);
        if (!grown)
            return NULL;
        sorted = grown;
        room = more;
    }
    struct memory *copy = malloc(sizeof *copy);
    if (!copy)
        return NULL;
    *copy = memory;
    copy->id = ++process.next_id;
    size_t at = above(memory.base);
    memmove(sorted + at + 1, sorted + at, (count - at) * sizeof *sorted);
    sorted[at] = copy;
    count++;
    return copy;
}

void map_remove(uintptr_t base) {
    size_t at = above(base);
    if (at == 0 || sorted[at - 1]->base != base)
        return;
    free(sorted[at - 1]);
    memmove(sorted + at - 1, sorted + at, (count - at) * sizeof *sorted);
    count--;
}

struct memory *map_owned(const struct context *context) {
    for (size_t at = count; at-- > 0;)
        if (sorted[at]->context == context && sorted[at]->kind != REGISTERED)
            return sorted[at];
    return NULL;
}

struct memory *map_of_pool(const struct pool *pool) {
    for (size_t at = count; at-- > 0;)
        if (sorted[at]->kind == ASYNC && sorted[at]->pool == pool)
            return sorted[at];
    return NULL;
}

struct memory *map_of_graphs(const struct device *device) {
    for (size_t at = count; at-- > 0;)
        if (sorted[at]->kind == GRAPH && sorted[at]->device == device)
            return sorted[at];
    return NULL;
}

/* Address space that costs nothing until touched, aligned to 2 MiB as device memory is. */
void *map_pages(size_t bytes) {
    size_t whole = bytes + GRANULE;
    char *start = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        return NULL;
    char *aligned = (char *)(((uintptr_t)start + GRANULE - 1) / GRANULE * GRANULE);
    size_t front = (size_t)(aligned - start), back = whole - front - (bytes + 4095) / 4096 * 4096;
    if (front)
        munmap(start, front);
    if (back)
        munmap(aligned + (bytes + 4095) / 4096 * 4096, back);
    return aligned;
}
