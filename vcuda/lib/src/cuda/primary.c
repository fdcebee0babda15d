/* The primary context of each device, which all users of a process share. The driver counts its holders; we ask it
 * whether the context is there rather than count along. */
#include "attachment.h"
#include "cuda/account.h"
#include "cuda/allocation_table.h"
#include "cuda/charge.h"
#include "cuda/context.h"
#include "cuda/context_registry.h"
#include "cuda/device_map.h"
#include "interposer.h"
#include "lock.h"

/* While calls that may make it are on their way, one reservation serves all of them: many threads start at once. */
static struct primary {
    bool busy; /* lock of the rest */
    unsigned on_way;
    struct charge charge;
} primaries[CONTEXT_DEVICES];

/* Before a call that may make the device's primary context. */
static CUresult retain_begin(CUdevice device) {
    struct charge charge;
    struct primary *primary = &primaries[device];
    bool active = context_primary_is_active(device);
    spin_lock(&primary->busy);
    bool joined = active || primary->on_way;
    primary->on_way += joined;
    spin_unlock(&primary->busy);
    if (joined)
        return device_map_card(device) == CARD_UNKNOWN ? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_SUCCESS;
    CUresult denied = context_reserve(&charge, device);
    bool appeared =
        denied == CUDA_ERROR_OUT_OF_MEMORY && context_primary_is_active(device); /* its reservation was in our way */
    spin_lock(&primary->busy);
    bool spare = primary->on_way && denied == CUDA_SUCCESS; /* another thread was as quick */
    if (denied == CUDA_SUCCESS && !spare)
        primary->charge = charge;
    if (denied == CUDA_ERROR_OUT_OF_MEMORY && (primary->on_way || appeared))
        denied = CUDA_SUCCESS;
    primary->on_way += denied == CUDA_SUCCESS;
    spin_unlock(&primary->busy);
    if (spare)
        charge_undo(&charge);
    return denied;
}

/* After it: the context that is there now owns the reservation; if there is none, the last one out undoes it. */
static CUresult retain_end(CUdevice device, CUcontext context, CUresult result) {
    struct primary *primary = &primaries[device];
    uint64_t id = result == CUDA_SUCCESS ? context_id_of(context) : 0;
    struct charge over = {.where = {.card = CARD_NONE}};
    uint64_t before = 0;
    spin_lock(&primary->busy);
    primary->on_way--;
    if (id) {
        struct allocation item = context_item(&primary->charge, id);
        if (item.card >= 0 && primary->charge.bytes && allocation_put_new(&item))
            primary->charge.bytes = 0;
        before = context_set_primary(device, id);
    }
    if (!primary->on_way && primary->charge.bytes) {
        over = primary->charge;
        primary->charge.bytes = 0;
    }
    spin_unlock(&primary->busy);
    charge_undo(&over);
    if (before && before != id)
        context_ended(before);
    return result;
}

/* Was it there when asked, and made anew by this call after another thread's last release? Then nothing is reserved. */
static CUresult charge_late(CUdevice device, CUresult result) {
    struct allocation item;
    struct charge charge;
    uint64_t id = context_primary(device);
    if (result != CUDA_SUCCESS || !id || vcuda_attached() != VCUDA_ATTACHED ||
        allocation_get(ALLOCATION_CONTEXT, id, &item) || !account_context_bytes(device_map_card(device)))
        return result;
    if (context_reserve(&charge, device) != CUDA_SUCCESS) {
        real.cuDevicePrimaryCtxRelease_v2(device);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    item = context_item(&charge, id);
    if (!allocation_put_new(&item))
        charge_undo(&charge);
    return result;
}

static bool is_counted(CUdevice device) {
    bool refused;
    return device >= 0 && device < CONTEXT_DEVICES && account_open(&refused);
}

CUresult hook_cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
    CUcontext context = NULL;
    if (!is_counted(device))
        return vcuda_attached() == VCUDA_REFUSED ? CUDA_ERROR_SYSTEM_NOT_READY
                                                 : real.cuDevicePrimaryCtxRetain(out, device);
    CUresult result = retain_begin(device);
    if (result != CUDA_SUCCESS)
        return result;
    result = real.cuDevicePrimaryCtxRetain(out ? &context : NULL, device);
    result = charge_late(device, retain_end(device, context, result));
    if (result == CUDA_SUCCESS && out)
        *out = context;
    return result;
}

static uint64_t id_of_green(CUgreenCtx green) {
    CUcontext context = NULL;
    return green && real.cuCtxFromGreenCtx(&context, green) == CUDA_SUCCESS ? context_id_of(context) : 0;
}

/* A green context keeps the primary one for its own life, takes next to nothing itself, and what is allocated in it is
 * the primary one's. */
CUresult hook_cuGreenCtxCreate(CUgreenCtx *out, CUdevResourceDesc resources, CUdevice device, unsigned int flags) {
    CUcontext context = NULL;
    if (!is_counted(device))
        return vcuda_attached() == VCUDA_REFUSED ? CUDA_ERROR_SYSTEM_NOT_READY
                                                 : real.cuGreenCtxCreate(out, resources, device, flags);
    CUresult result = retain_begin(device);
    if (result != CUDA_SUCCESS)
        return result;
    result = real.cuGreenCtxCreate(out, resources, device, flags);
    if (result != CUDA_SUCCESS)
        return retain_end(device, NULL, result);
    bool retained = real.cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS;
    uint64_t id = id_of_green(out ? *out : NULL), primary = retained ? context_id_of(context) : 0;
    if (id && primary && id != primary)
        context_green(id, primary);
    while (primary && !context_seen(primary, device_map_card(device), context_changes()))
        ;
    retain_end(device, context, retained ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT);
    if (retained)
        real.cuDevicePrimaryCtxRelease_v2(device);
    return result;
}

/* The id of the primary context, asked before a call that may end it; the call that makes the next one ends it too. */
static uint64_t id_before(CUdevice device) {
    context_forget();
    return context_primary(device);
}

static uint64_t ended(CUresult result, CUdevice device, uint64_t id, bool reset) {
    return result == CUDA_SUCCESS && id && (reset || !context_primary_is_active(device)) ? id : 0;
}

static CUresult after(struct context_end *end, CUresult result, CUdevice device, uint64_t id, bool reset) {
    context_over(end, ended(result, device, id, reset));
    context_forget();
    return result;
}

CUresult hook_cuDevicePrimaryCtxRelease(CUdevice device) {
    uint64_t id = id_before(device);
    struct context_end end;
    context_ending(&end, id);
    CUresult result = real.cuDevicePrimaryCtxRelease(device);
    return after(&end, result, device, id, false);
}

CUresult hook_cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    uint64_t id = id_before(device);
    struct context_end end;
    context_ending(&end, id);
    CUresult result = real.cuDevicePrimaryCtxRelease_v2(device);
    return after(&end, result, device, id, false);
}

CUresult hook_cuDevicePrimaryCtxReset(CUdevice device) {
    uint64_t id = id_before(device);
    struct context_end end;
    context_ending(&end, id);
    CUresult result = real.cuDevicePrimaryCtxReset(device);
    return after(&end, result, device, id, true);
}

CUresult hook_cuDevicePrimaryCtxReset_v2(CUdevice device) {
    uint64_t id = id_before(device);
    struct context_end end;
    context_ending(&end, id);
    CUresult result = real.cuDevicePrimaryCtxReset_v2(device);
    return after(&end, result, device, id, true);
}

CUresult hook_cuGreenCtxDestroy(CUgreenCtx context) {
    uint64_t ids[CONTEXT_DEVICES], id = id_of_green(context);
    struct context_end end;
    for (CUdevice device = 0; device < CONTEXT_DEVICES; device++)
        ids[device] = id_before(device);
    context_ending(&end, context_owner(id));
    CUresult result = real.cuGreenCtxDestroy(context);
    struct allocation item;
    if (result == CUDA_SUCCESS && id && context_owner(id) != id)
        allocation_take(ALLOCATION_CONTEXT, id, &item);
    uint64_t over = 0; /* its device's primary context, if it was the last that kept it */
    for (CUdevice device = 0; device < CONTEXT_DEVICES && !over; device++)
        over = ended(result, device, ids[device], false);
    context_over(&end, over);
    context_forget();
    return result;
}
