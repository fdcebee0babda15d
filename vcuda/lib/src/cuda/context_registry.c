#include "cuda/context_registry.h"

#include "cuda/account.h"
#include "cuda/allocation_table.h"
#include "cuda/device_map.h"
#include "cuda/discharge.h"
#include "cuda/graph_pool.h"
#include "cuda/pool_account.h"
#include "interposer.h"

static uint64_t changes; /* raised around every end of a context */
static uint64_t primaries[CONTEXT_DEVICES];

uint64_t context_changes(void) {
    return __atomic_load_n(&changes, __ATOMIC_SEQ_CST);
}

void context_forget(void) {
    __atomic_fetch_add(&changes, 1, __ATOMIC_SEQ_CST);
}

/* ---- ends ----------------------------------------------------------------------------------------------------------
 */

#define OF_A_CONTEXT                                                                                                   \
    (1u << ALLOCATION_LINEAR | 1u << ALLOCATION_SMALL | 1u << ALLOCATION_MANAGED | 1u << ALLOCATION_ARRAY |            \
     1u << ALLOCATION_SETTING | 1u << ALLOCATION_EXTERNAL | 1u << ALLOCATION_STREAM | 1u << ALLOCATION_STREAMS)

static void drop(const struct allocation *item, void *unused) {
    (void)unused;
    allocation_discharge(item);
}

/* In this order: who finds the context's item afterwards, or the number of changes as it was, has put what the sweep
 * will find. */
void context_ended(uint64_t id) {
    struct allocation context;
    bool known = id && allocation_take(ALLOCATION_CONTEXT, id, &context);
    context_forget();
    if (!id)
        return;
    allocation_sweep(OF_A_CONTEXT, id, drop, NULL);
    graph_pools_context_gone(id);
    if (known) {
        account_return(context.card, context.bytes);
        pool_account_context_ended(context.card);
    }
}

bool context_seen(uint64_t id, int card, uint64_t seen) {
    struct allocation old, item = {.key = id, .card = (int8_t)card, .kind = ALLOCATION_CONTEXT};
    if (card < 0 || allocation_get(ALLOCATION_CONTEXT, id, &old))
        return true;
    item.bytes = account_context_bytes(card);
    account_taken(card, item.bytes);
    enum allocation_put put = allocation_put_while(&item, &old, &changes, seen);
    if (put != ALLOCATION_NEW)
        account_return(card, item.bytes);
    return put != ALLOCATION_STALE;
}

/* ---- green and primary contexts
 * --------------------------------------------------------------------------------------------------------------- */

static bool any_green; /* most processes have none, and every allocation asks */

void context_green(uint64_t id, uint64_t primary) {
    allocation_put_new(
        &(struct allocation){.key = id, .owner = primary, .card = CARD_NONE, .kind = ALLOCATION_CONTEXT});
    __atomic_store_n(&any_green, true, __ATOMIC_RELEASE);
}

uint64_t context_owner(uint64_t id) {
    struct allocation context;
    if (!__atomic_load_n(&any_green, __ATOMIC_ACQUIRE))
        return id;
    return allocation_get(ALLOCATION_CONTEXT, id, &context) && context.owner ? context.owner : id;
}

uint64_t context_primary(CUdevice device) {
    return device >= 0 && device < CONTEXT_DEVICES ? __atomic_load_n(&primaries[device], __ATOMIC_ACQUIRE) : 0;
}

uint64_t context_set_primary(CUdevice device, uint64_t id) {
    return __atomic_exchange_n(&primaries[device], id, __ATOMIC_ACQ_REL);
}

bool context_primary_is_active(CUdevice device) {
    unsigned int flags;
    int active = 0;
    return real.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active;
}

/* ---- the context that a thread works in
 * --------------------------------------------------------------------------------------------------------------- */

/* If it is its device's primary context: then whoever resets that ends this one. */
static void note_primary(CUcontext context, const struct current_context *where) {
    CUcontext primary = NULL;
    if (where->device < 0 || where->device >= CONTEXT_DEVICES || !context_primary_is_active(where->device) ||
        real.cuDevicePrimaryCtxRetain(&primary, where->device) != CUDA_SUCCESS)
        return;
    real.cuDevicePrimaryCtxRelease_v2(where->device);
    if (primary != context)
        return;
    uint64_t before = context_set_primary(where->device, where->owner);
    if (before && before != where->owner)
        context_ended(before);
}

/* A context that a thread works in. One that no call of ours has made came through the driver's export tables, as the
 * CUDA runtime's does: it is charged now, past the limit too, since it is there. */
static bool charge_found(CUcontext context, const struct current_context *where) {
    struct allocation item;
    if (where->card < 0 || allocation_get(ALLOCATION_CONTEXT, where->owner, &item))
        return true;
    note_primary(context, where);
    return context_seen(where->owner, where->card, where->changes);
}

bool context_current(struct current_context *where) {
    /* What this thread found last. A destroyed context's handle may be used again: hence the number of changes. */
    static __thread struct {
        CUcontext context;
        struct current_context found;
    } last __attribute__((tls_model("initial-exec")));
    CUcontext context = NULL;
    if (real.cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context)
        return false;
    while (last.context != context || last.found.changes != context_changes()) {
        struct current_context found = {.changes = context_changes()};
        if (real.cuCtxGetDevice(&found.device) != CUDA_SUCCESS || !(found.owner = context_id_of(context)))
            return false;
        found.card = device_map_card(found.device);
        if (!charge_found(context, &found))
            continue;
        last.context = context;
        last.found = found;
    }
    *where = last.found;
    return true;
}

bool context_of_stream(CUstream stream, struct current_context *where) {
    CUcontext context = NULL, current = NULL, popped;
    if ((uintptr_t)stream <= 2 || real.cuStreamGetCtx(stream, &context) != CUDA_SUCCESS || !context)
        return context_current(where);
    real.cuCtxGetCurrent(&current);
    if (context == current)
        return context_current(where);
    if (real.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
        return false;
    bool found = context_current(where);
    real.cuCtxPopCurrent_v2(&popped);
    return found;
}

int card_of_location(CUmemLocation location) {
    struct current_context where;
    if (location.type >= CU_MEM_LOCATION_TYPE_HOST && location.type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT)
        return CARD_NONE;
    if (location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        return device_map_card(location.id);
    return context_current(&where) ? where.card : device_map_card(0);
}

/* ---- what contexts own ------------------------------------------------------------------------------------------- */

/* The context that this thread works in, if it has come in the place of another on the card: a primary context that is
 * made anew after a reset has the handle of the one before. */
static uint64_t owner_instead(uint64_t before, int card) {
    struct current_context where;
    uint64_t owner = context_current(&where) && where.card == card ? context_owner(where.owner) : 0;
    return owner != before ? owner : 0;
}

void context_keep(const struct allocation *item, uint64_t seen) {
    struct allocation old, context, kept = *item;
    enum allocation_put put;
    while ((put = allocation_put_while(&kept, &old, &changes, seen)) == ALLOCATION_STALE) {
        seen = context_changes();
        if (!allocation_get(ALLOCATION_CONTEXT, kept.owner, &context) &&
            !(kept.owner = owner_instead(kept.owner, kept.card))) {
            allocation_discharge(&kept);
            return;
        }
    }
    if (put == ALLOCATION_REPLACED)
        allocation_discharge(&old);
}
