/* Contexts that the program makes and destroys: each takes memory of the card by itself. */
#include "cuda/context.h"

#include "cuda/account.h"
#include "cuda/allocation_table.h"
#include "cuda/charge.h"
#include "cuda/context_registry.h"
#include "cuda/device_map.h"
#include "cuda/graph_pool.h"
#include "cuda/mem.h"
#include "cuda/pool_account.h"
#include "cuda/settle.h"
#include "interposer.h"

void context_ending(struct context_end *end, uint64_t id) {
    graph_pools_hold();
    settle_suspend(end, id);
}

void context_over(struct context_end *end, uint64_t ended) {
    settle_resume(end);
    if (ended)
        context_ended(ended);
    graph_pools_release();
}

CUresult hook_cuCtxDestroy(CUcontext context) {
    uint64_t id = context_id_of(context);
    struct context_end end;
    context_forget();
    context_ending(&end, id);
    CUresult result = real.cuCtxDestroy(context);
    context_over(&end, result == CUDA_SUCCESS ? id : 0);
    return result;
}

CUresult hook_cuCtxDestroy_v2(CUcontext context) {
    uint64_t id = context_id_of(context);
    struct context_end end;
    context_forget();
    context_ending(&end, id);
    CUresult result = real.cuCtxDestroy_v2(context);
    context_over(&end, result == CUDA_SUCCESS ? id : 0);
    return result;
}

/* The last of its users ends a context (cuCtxAttach): only the driver counts them. */
CUresult hook_cuCtxDetach(CUcontext context) {
    uint64_t id = context_id_of(context);
    struct context_end end;
    context_forget();
    context_ending(&end, id);
    CUresult result = real.cuCtxDetach(context);
    context_over(&end, result == CUDA_SUCCESS && context_id_of(context) != id ? id : 0);
    return result;
}

/* ---- contexts of the program's own
 * ----------------------------------------------------------------------------------- */

CUresult context_reserve(struct charge *charge, CUdevice device) {
    bool refused;
    *charge = (struct charge){.where = {.device = device, .card = CARD_NONE}};
    if (!account_open(&refused))
        return refused ? CUDA_ERROR_SYSTEM_NOT_READY : CUDA_SUCCESS;
    int card = device_map_card(device);
    if (card == CARD_UNKNOWN)
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    return charge_on(charge, card, account_context_bytes(card));
}

struct allocation context_item(const struct charge *charge, uint64_t id) {
    return (struct allocation){
        .key = id, .bytes = charge->bytes, .card = (int8_t)charge->where.card, .kind = ALLOCATION_CONTEXT};
}

static CUresult created(struct charge *charge, CUresult result, const CUcontext *out) {
    struct allocation item, old;
    if (result != CUDA_SUCCESS) {
        charge_undo(charge);
    } else if (charge_counts(charge) && out) {
        item = context_item(charge, context_id_of(*out));
        if (allocation_put(&item, &old) == ALLOCATION_REPLACED)
            account_return(old.card, old.bytes);
    }
    return result;
}

CUresult hook_cuCtxCreate(CUcontext *out, unsigned int flags, CUdevice device) {
    struct charge charge;
    CUresult denied = context_reserve(&charge, device);
    return denied != CUDA_SUCCESS ? denied : created(&charge, real.cuCtxCreate(out, flags, device), out);
}

CUresult hook_cuCtxCreate_v2(CUcontext *out, unsigned int flags, CUdevice device) {
    struct charge charge;
    CUresult denied = context_reserve(&charge, device);
    return denied != CUDA_SUCCESS ? denied : created(&charge, real.cuCtxCreate_v2(out, flags, device), out);
}

CUresult hook_cuCtxCreate_v3(CUcontext *out, void *affinity, int count, unsigned int flags, CUdevice device) {
    struct charge charge;
    CUresult denied = context_reserve(&charge, device);
    return denied != CUDA_SUCCESS ? denied
                                  : created(&charge, real.cuCtxCreate_v3(out, affinity, count, flags, device), out);
}

CUresult hook_cuCtxCreate_v4(CUcontext *out, void *params, unsigned int flags, CUdevice device) {
    struct charge charge;
    CUresult denied = context_reserve(&charge, device);
    return denied != CUDA_SUCCESS ? denied : created(&charge, real.cuCtxCreate_v4(out, params, flags, device), out);
}
