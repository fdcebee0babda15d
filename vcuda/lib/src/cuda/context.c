/* Contexts take memory of the card by themselves, and when one ends, everything allocated in it ends with it.
 *
 * They are known by their ids, because a later one may have the same handle.
 */
#include "cuda/context.h"

#include "cuda/account.h"
#include "cuda/pool_account.h"
#include "cuda/allocation_table.h"
#include "cuda/mem.h"
#include "cuda/stream_meter.h"
#include "interposer.h"

/* ---- ends ----------------------------------------------------------------------------------------------------------
 */

#define OF_A_CONTEXT                                                                                                   \
    (1u << ALLOCATION_LINEAR | 1u << ALLOCATION_SMALL | 1u << ALLOCATION_ARRAY | 1u << ALLOCATION_SETTING |            \
     1u << ALLOCATION_EXTERNAL)

static void drop(const struct allocation *item, void *unused) {
    (void)unused;
    mem_discharge(item);
}

void context_ended(uint64_t id) {
    struct allocation context;
    device_map_forget();
    if (!id)
        return;
    allocation_sweep(OF_A_CONTEXT, id, drop, NULL);
    if (allocation_take(ALLOCATION_CONTEXT, id, &context)) {
        account_return(context.card, context.bytes);
        pool_account_settle_card(context.card);
    }
}

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

void context_found(CUcontext context, const struct mapped_context *where) {
    struct allocation item;
    if (where->card < 0 || allocation_get(ALLOCATION_CONTEXT, where->owner, &item))
        return;
    primary_found(context, where);
    item = (struct allocation){.key = where->owner,
                               .bytes = account_context_bytes(where->card),
                               .card = (int8_t)where->card,
                               .kind = ALLOCATION_CONTEXT};
    if (allocation_put_new(&item))
        account_taken(item.card, item.bytes);
}

CUresult hook_cuCtxDestroy(CUcontext context) {
    uint64_t id = context_id_of(context);
    device_map_forget();
    meter_suspend();
    CUresult result = real.cuCtxDestroy(context);
    meter_resume();
    if (result == CUDA_SUCCESS)
        context_ended(id);
    return result;
}

CUresult hook_cuCtxDestroy_v2(CUcontext context) {
    uint64_t id = context_id_of(context);
    device_map_forget();
    meter_suspend();
    CUresult result = real.cuCtxDestroy_v2(context);
    meter_resume();
    if (result == CUDA_SUCCESS)
        context_ended(id);
    return result;
}

/* ---- contexts of the program's own
 * ----------------------------------------------------------------------------------- */

CUresult context_reserve(struct claim *claim, CUdevice device) {
    bool refused;
    *claim = (struct claim){.where = {.device = device, .card = CARD_NONE}};
    if (!account_open(&refused))
        return refused ? CUDA_ERROR_SYSTEM_NOT_READY : CUDA_SUCCESS;
    int card = device_map_card(device);
    if (card == CARD_UNKNOWN)
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    return claim_on(claim, card, account_context_bytes(card));
}

struct allocation context_item(const struct claim *claim, uint64_t id) {
    return (struct allocation){
        .key = id, .bytes = claim->bytes, .card = (int8_t)claim->where.card, .kind = ALLOCATION_CONTEXT};
}

static CUresult created(struct claim *claim, CUresult result, const CUcontext *out) {
    struct allocation item, old;
    if (result != CUDA_SUCCESS) {
        claim_undo(claim);
    } else if (claim_counts(claim) && out) {
        item = context_item(claim, context_id_of(*out));
        if (allocation_put(&item, &old) == ALLOCATION_REPLACED)
            account_return(old.card, old.bytes);
    }
    return result;
}

CUresult hook_cuCtxCreate(CUcontext *out, unsigned int flags, CUdevice device) {
    struct claim claim;
    CUresult denied = context_reserve(&claim, device);
    return denied != CUDA_SUCCESS ? denied : created(&claim, real.cuCtxCreate(out, flags, device), out);
}

CUresult hook_cuCtxCreate_v2(CUcontext *out, unsigned int flags, CUdevice device) {
    struct claim claim;
    CUresult denied = context_reserve(&claim, device);
    return denied != CUDA_SUCCESS ? denied : created(&claim, real.cuCtxCreate_v2(out, flags, device), out);
}

CUresult hook_cuCtxCreate_v3(CUcontext *out, void *affinity, int count, unsigned int flags, CUdevice device) {
    struct claim claim;
    CUresult denied = context_reserve(&claim, device);
    return denied != CUDA_SUCCESS ? denied
                                  : created(&claim, real.cuCtxCreate_v3(out, affinity, count, flags, device), out);
}

CUresult hook_cuCtxCreate_v4(CUcontext *out, void *params, unsigned int flags, CUdevice device) {
    struct claim claim;
    CUresult denied = context_reserve(&claim, device);
    return denied != CUDA_SUCCESS ? denied : created(&claim, real.cuCtxCreate_v4(out, params, flags, device), out);
}
