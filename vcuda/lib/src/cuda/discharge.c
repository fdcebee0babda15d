#include "cuda/discharge.h"

#include "cuda/account.h"
#include "cuda/graph_pool.h"
#include "cuda/pool_account.h"
#include "cuda/stream_count.h"

static void graph_freed(const struct allocation *item) {
    graph_pool_freed((struct graph_pool *)(uintptr_t)item->owner, item->bytes, item->count);
    pool_account_touched();
}

void allocation_discharge(const struct allocation *item) {
    struct allocation granule;
    if (item->kind == ALLOCATION_ASYNC)
        pool_account_freed(item);
    else if (item->kind == ALLOCATION_GRAPH)
        graph_freed(item);
    else if (item->kind == ALLOCATION_MANAGED)
        account_movable_return(item->card, item->bytes);
    else if (item->kind == ALLOCATION_STREAM)
        stream_count_down(item->owner);
    else if (item->kind != ALLOCATION_SMALL)
        account_return(item->card, item->bytes);
    else if (allocation_count(ALLOCATION_GRANULE, item->key / GRANULE, -1, &granule) && !granule.count)
        account_return(granule.card, granule.bytes);
}
