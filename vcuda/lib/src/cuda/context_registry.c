#include "cuda/context_registry.h"

#include "cuda/account.h"
#include "cuda/allocation_table.h"
#include "cuda/device_map.h"
#include "cuda/discharge.h"
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
    (1u << ALLOCATION_LINEAR | 1u << ALLOCATION_SMALL | 1u << ALLOCATION_ARRAY | 1u << ALLOCATION_SETTING |            \
     1u << ALLOCATION_EXTERNAL)

static void drop(const struct allocation *item, void *unused) {
    (void)unused;
    allocation_discharge(item);
}

void context_ended(uint64_t id) {
    struct allocation context;
    context_forget();
    if (!id)
        return;
    allocation_sweep(OF_A_CONTEXT, id, drop, NULL);
    if (allocation_take(ALLOCATION_CONTEXT, id, &context)) {
        account_return(context.card, context.bytes);
        pool_account_context_ended(context.card);
    }
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
static void charge_found(CUcontext context, const struct current_context *where) {
    struct allocation item;
    if (where->card < 0 || allocation_get(ALLOCATION_CONTEXT, where->owner, &item))
        return;
    note_primary(context, where);
    item = (struct allocation){.key = where->owner,
                               .bytes = account_context_bytes(where->card),
                               .card = (int8_t)where->card,
                               .kind = ALLOCATION_CONTEXT};
    if (allocation_put_new(&item))
        account_taken(item.card, item.bytes);
}

bool context_current(struct current_context *where) {
    /* What this thread found last. A destroyed context's handle may be used again: hence the number of changes. */
    static __thread struct {
        CUcontext context;
        uint64_t changes;
        struct current_context found;
    } last __attribute__((tls_model("initial-exec")));
    CUcontext context = NULL;
    if (real.cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context)
        return false;
    uint64_t now = __atomic_load_n(&changes, __ATOMIC_SEQ_CST);
    if (last.context != context || last.changes != now) {
        struct current_context found;
        if (real.cuCtxGetDevice(&found.device) != CUDA_SUCCESS || !(found.owner = context_id_of(context)))
            return false;
        found.card = device_map_card(found.device);
        last.context = context;
        last.changes = now;
        last.found = found;
        charge_found(context, &found);
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
