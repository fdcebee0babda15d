#include "cuda/granule_gap.h"

#include <errno.h>
#include <stdlib.h>

#include "cuda/account.h"
#include "cuda/allocation_table.h"

#define UNIT 512 /* in which granules are divided */

struct piece {
    uint64_t at, end;
};

struct pieces {
    struct piece *list;
    uint64_t count, room;
};

static void collect(const struct allocation *item, void *argument) {
    struct pieces *pieces = argument;
    if (pieces->count < pieces->room)
        pieces->list[pieces->count] = (struct piece){item->key, item->key + (item->bytes + UNIT - 1) / UNIT * UNIT};
    pieces->count++;
}

static int by_address(const void *left, const void *right) {
    uint64_t a = ((const struct piece *)left)->at, b = ((const struct piece *)right)->at;
    return (a > b) - (a < b);
}

/* Of pieces in order of their addresses: each granule begins and ends with a gap, perhaps of no size. */
static bool has_gap(const struct piece *list, uint64_t count, uint64_t bytes) {
    uint64_t free_from = 0, granule_end = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (list[i].at >= granule_end) {
            if (granule_end - free_from >= bytes)
                return true;
            free_from = list[i].at / GRANULE * GRANULE;
            granule_end = free_from + GRANULE;
        }
        if (list[i].at - free_from >= bytes)
            return true;
        free_from = list[i].end;
    }
    return granule_end - free_from >= bytes;
}

bool granule_gap(uint64_t context, uint64_t bytes) {
    int saved = errno;
    struct pieces pieces = {0};
    allocation_visit(ALLOCATION_SMALL, context, collect, &pieces);
    if (!pieces.count)
        return false;
    pieces.room = pieces.count;
    pieces.count = 0;
    pieces.list = malloc(pieces.room * sizeof *pieces.list);
    if (pieces.list)
        allocation_visit(ALLOCATION_SMALL, context, collect, &pieces);
    uint64_t count = pieces.count < pieces.room ? pieces.count : pieces.room;
    bool found = false;
    if (pieces.list && count) {
        qsort(pieces.list, count, sizeof *pieces.list, by_address);
        found = has_gap(pieces.list, count, (bytes + UNIT - 1) / UNIT * UNIT);
    }
    free(pieces.list);
    errno = saved;
    return found;
}
