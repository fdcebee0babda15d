/* Streams: the driver takes memory for them without a call that names a size. It does not give it back when a stream is
 * destroyed, but uses it again for the next: what a context is charged is the most streams that it has had at once.
 *
 * Two items of the table tell: of each stream whose it is, and of each context how many it has, plus one, since an item
 * that counts nothing is none.
 */
#include "cuda/stream_account.h"

#include "cuda/account.h"
#include "cuda/allocation_table.h"
#include "cuda/claim.h"
#include "cuda/context_registry.h"
#include "cuda/device_map.h"
#include "cuda/setting.h"
#include "interposer.h"

/* How many the context has then; 0: there is no memory to count them. */
static uint32_t count_up(uint64_t owner) {
    struct allocation item;
    for (int attempt = 0; attempt < 2; attempt++) {
        if (allocation_count(ALLOCATION_STREAMS, owner, 1, &item))
            return item.count - 1;
        item = (struct allocation){
            .key = owner, .owner = owner, .count = 2, .card = CARD_NONE, .kind = ALLOCATION_STREAMS};
        if (allocation_put_new(&item))
            return 1;
    }
    return 0;
}

static void count_down(uint64_t owner) {
    struct allocation item;
    allocation_count(ALLOCATION_STREAMS, owner, -1, &item);
}

/* Before the driver is asked for a stream of the current context. */
static CUresult begin(struct claim *claim) {
    CUresult denied = claim_here(claim, 0);
    if (denied != CUDA_SUCCESS || !claim_counts(claim))
        return denied;
    denied = setting_streams(&claim->where, count_up(claim->where.owner));
    if (denied != CUDA_SUCCESS)
        count_down(claim->where.owner);
    return denied;
}

static CUresult made(const struct claim *claim, CUresult result, const CUstream *out) {
    if (!claim_counts(claim))
        return result;
    if (result != CUDA_SUCCESS || !out)
        count_down(claim->where.owner);
    else
        context_keep(&(struct allocation){.key = (uint64_t)(uintptr_t)*out,
                                          .owner = claim->where.owner,
                                          .card = CARD_NONE,
                                          .kind = ALLOCATION_STREAM},
                     claim->where.changes);
    return result;
}

void stream_account_gone(const struct allocation *stream) {
    count_down(stream->owner);
}

CUresult hook_cuStreamCreate(CUstream *out, unsigned int flags) {
    struct claim claim;
    CUresult denied = begin(&claim);
    return denied != CUDA_SUCCESS ? denied : made(&claim, real.cuStreamCreate(out, flags), out);
}

CUresult hook_cuStreamCreateWithPriority(CUstream *out, unsigned int flags, int priority) {
    struct claim claim;
    CUresult denied = begin(&claim);
    return denied != CUDA_SUCCESS ? denied : made(&claim, real.cuStreamCreateWithPriority(out, flags, priority), out);
}

CUresult hook_cuGreenCtxStreamCreate(CUstream *out, CUgreenCtx green, unsigned int flags, int priority) {
    struct claim claim = {.where = {.card = CARD_NONE}};
    CUcontext context = NULL, popped;
    CUresult denied = CUDA_SUCCESS;
    if (green && real.cuCtxFromGreenCtx(&context, green) == CUDA_SUCCESS &&
        real.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS) {
        denied = begin(&claim);
        real.cuCtxPopCurrent_v2(&popped);
    }
    return denied != CUDA_SUCCESS ? denied
                                  : made(&claim, real.cuGreenCtxStreamCreate(out, green, flags, priority), out);
}

static CUresult destroy(CUstream stream, CUresult (*call)(CUstream)) {
    struct allocation item, old;
    bool known = allocation_take(ALLOCATION_STREAM, (uint64_t)(uintptr_t)stream, &item);
    CUresult result = call(stream);
    if (known && result == CUDA_SUCCESS)
        count_down(item.owner);
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
