/* Streams: the driver takes memory for them without a call that names a size. It does not give it back when a stream is
 * destroyed, but uses it again for the next: what a context is charged is the most streams that it has had at once.
 * An item of the table tells of each stream whose it is; how many a context has is stream_count.h's.
 */
#include "cuda/stream_account.h"

#include "cuda/account.h"
#include "cuda/allocation_table.h"
#include "cuda/charge.h"
#include "cuda/context_registry.h"
#include "cuda/device_map.h"
#include "cuda/setting.h"
#include "cuda/stream_count.h"
#include "interposer.h"

/* Before the driver is asked for a stream of the current context. */
static CUresult begin(struct charge *charge) {
    CUresult denied = charge_here(charge, 0);
    if (denied != CUDA_SUCCESS || !charge_counts(charge))
        return denied;
    denied = setting_streams(&charge->where, stream_count_up(charge->where.owner));
    if (denied != CUDA_SUCCESS)
        stream_count_down(charge->where.owner);
    return denied;
}

static CUresult made(const struct charge *charge, CUresult result, const CUstream *out) {
    if (!charge_counts(charge))
        return result;
    if (result != CUDA_SUCCESS || !out)
        stream_count_down(charge->where.owner);
    else
        context_keep(&(struct allocation){.key = (uint64_t)(uintptr_t)*out,
                                          .owner = charge->where.owner,
                                          .card = CARD_NONE,
                                          .kind = ALLOCATION_STREAM},
                     charge->where.changes);
    return result;
}

CUresult hook_cuStreamCreate(CUstream *out, unsigned int flags) {
    struct charge charge;
    CUresult denied = begin(&charge);
    return denied != CUDA_SUCCESS ? denied : made(&charge, real.cuStreamCreate(out, flags), out);
}

CUresult hook_cuStreamCreateWithPriority(CUstream *out, unsigned int flags, int priority) {
    struct charge charge;
    CUresult denied = begin(&charge);
    return denied != CUDA_SUCCESS ? denied : made(&charge, real.cuStreamCreateWithPriority(out, flags, priority), out);
}

CUresult hook_cuGreenCtxStreamCreate(CUstream *out, CUgreenCtx green, unsigned int flags, int priority) {
    struct charge charge = {.where = {.card = CARD_NONE}};
    CUcontext context = NULL, popped;
    CUresult denied = CUDA_SUCCESS;
    if (green && real.cuCtxFromGreenCtx(&context, green) == CUDA_SUCCESS &&
        real.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS) {
        denied = begin(&charge);
        real.cuCtxPopCurrent_v2(&popped);
    }
    return denied != CUDA_SUCCESS ? denied
                                  : made(&charge, real.cuGreenCtxStreamCreate(out, green, flags, priority), out);
}

static CUresult destroy(CUstream stream, CUresult (*call)(CUstream)) {
    struct allocation item, old;
    bool known = allocation_take(ALLOCATION_STREAM, (uint64_t)(uintptr_t)stream, &item);
    CUresult result = call(stream);
    if (known && result == CUDA_SUCCESS)
        stream_count_down(item.owner);
    else if (known)
        allocation_put(&item, &old);
    return result;
}

CUresult stream_account_destroy(CUstream stream) {
    return destroy(stream, real.cuStreamDestroy);
}

CUresult stream_account_destroy_v2(CUstream stream) {
    return destroy(stream, real.cuStreamDestroy_v2);
}
