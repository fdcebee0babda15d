/* Linear, pitched and managed memory.
 *
 * The driver hands out whole granules of 2 MiB; allocations below 1 MiB share them. The charge follows the granules:
 * one that holds a small allocation is charged once, from its first to its last, so that a tenant gains nothing from
 * what it leaves unused in between. Before the call nobody knows whether a small one will need a new granule: it
 * reserves one, and gives it back if it was not needed. Where the limit leaves no room for one, it goes to the driver
 * without, if a granule of its context has a gap that is large enough; what the driver puts elsewhere goes back.
 */
#include "cuda/mem.h"

#include "attachment.h"
#include "cuda/account.h"
#include "cuda/allocation_table.h"
#include "cuda/charge.h"
#include "cuda/context_registry.h"
#include "cuda/device_map.h"
#include "cuda/discharge.h"
#include "cuda/exported.h"
#include "cuda/granule_gap.h"
#include "cuda/imported.h"
#include "cuda/pool_account.h"
#include "fork.h"
#include "interposer.h"
#include "lock.h"
#include "page.h"

/* The driver's bound between the two kinds. */
#define SMALL (UINT64_C(1) << 20)
/* Rows are padded to this; where a driver pads more, the charge is corrected after the call. */
#define PITCH 512

static bool is_small(uint64_t bytes) {
    return bytes && bytes < SMALL;
}

/* Is there a charged granule that it lies in, or room for one more? */
static bool join_granule(struct charge *charge, uint64_t number) {
    struct allocation granule = {
        .key = number, .bytes = GRANULE, .card = (int8_t)charge->where.card, .kind = ALLOCATION_GRANULE};
    struct allocation counted;
    if (!charge->bytes && allocation_count(ALLOCATION_GRANULE, number, 1, &counted))
        return true;
    if (!charge_resize(charge, GRANULE))
        return false;
    if (!allocation_join(&granule))
        charge_resize(charge, 0);
    return true;
}

/* Remember an allocation and settle its charge; false if the limit forbids what the driver took beyond it. */
static bool keep(struct charge *charge, uint64_t at, uint64_t bytes) {
    if (!charge_counts(charge))
        return true;
    struct allocation item = {.key = at, .owner = charge->where.owner, .card = (int8_t)charge->where.card};
    bool shares = is_small(bytes) && at / GRANULE == (at + bytes - 1) / GRANULE;
    if (shares ? !join_granule(charge, at / GRANULE) : !charge_resize(charge, granules(bytes)))
        return false;
    item.kind = shares ? ALLOCATION_SMALL : ALLOCATION_LINEAR;
    item.bytes = shares ? bytes : charge->bytes;
    context_keep(&item, charge->where.changes);
    return true;
}

/* Reserve for a linear allocation. */
static CUresult begin(struct charge *charge, uint64_t bytes) {
    if (!is_small(bytes))
        return charge_here(charge, granules(bytes));
    CUresult result = charge_here(charge, 0);
    if (result != CUDA_SUCCESS || charge->where.card == CARD_NONE)
        return result;
    if (charge_counts(charge) && !account_fits(charge->where.card, GRANULE) && granule_gap(charge->where.owner, bytes))
        return CUDA_SUCCESS;
    return charge_on(charge, charge->where.card, GRANULE);
}

/* The card is full though the share is not: with the page's leave, memory that can be moved out of the way. */
static CUresult oversubscribe(CUdeviceptr *out, size_t bytes, CUresult result) {
    const struct vcuda_limits_view *view = vcuda_limits();
    if (result != CUDA_ERROR_OUT_OF_MEMORY || !view || !(view->flags & VCUDA_FLAG_OVERSUBSCRIBE) || !out || !bytes)
        return result;
    return real.cuMemAllocManaged(out, bytes, 1 /* attached to every stream */) == CUDA_SUCCESS ? CUDA_SUCCESS : result;
}

/* After the driver's call: keep what it gave, or take everything back. */
static CUresult finish(struct charge *charge, CUresult result, uint64_t at, uint64_t bytes) {
    if (result == CUDA_SUCCESS && keep(charge, at, bytes))
        return CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) {
        real.cuMemFree_v2(at);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    charge_undo(charge);
    return result;
}

CUresult hook_cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) {
    struct charge charge;
    CUdeviceptr at = 0;
    CUresult result = begin(&charge, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    result = oversubscribe(&at, bytes, real.cuMemAlloc_v2(out ? &at : NULL, bytes));
    result = finish(&charge, result, at, bytes);
    if (result == CUDA_SUCCESS && out)
        *out = at;
    return result;
}

CUresult hook_cuMemAlloc(CUdeviceptr_v1 *out, unsigned int bytes) {
    struct charge charge;
    CUdeviceptr_v1 at = 0;
    CUresult result = begin(&charge, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    result = finish(&charge, real.cuMemAlloc(out ? &at : NULL, bytes), at, bytes);
    if (result == CUDA_SUCCESS && out)
        *out = at;
    return result;
}

CUresult hook_cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned int flags) {
    struct charge charge;
    CUdeviceptr at = 0;
    CUresult result = charge_here(&charge, granules(bytes));
    if (result != CUDA_SUCCESS)
        return result;
    result = real.cuMemAllocManaged(out ? &at : NULL, bytes, flags);
    if (result == CUDA_SUCCESS && charge_counts(&charge)) { /* it can be resident as a whole, and shares no granule */
        account_movable(charge.bytes);
        context_keep(&(struct allocation){.key = at,
                                          .bytes = charge.bytes,
                                          .owner = charge.where.owner,
                                          .card = (int8_t)charge.where.card,
                                          .kind = ALLOCATION_MANAGED},
                     charge.where.changes);
    } else if (result != CUDA_SUCCESS) {
        charge_undo(&charge);
    }
    if (result == CUDA_SUCCESS && out)
        *out = at;
    return result;
}

/* Bytes of rows of this pitch; more than any card has if they cannot be counted. */
static uint64_t rows(uint64_t pitch, uint64_t height) {
    uint64_t bytes;
    return __builtin_mul_overflow(pitch, height, &bytes) ? UINT64_MAX : bytes;
}

static uint64_t padded(uint64_t width) {
    return width > UINT64_MAX - (PITCH - 1) ? UINT64_MAX : (width + PITCH - 1) / PITCH * PITCH;
}

CUresult hook_cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned int element) {
    struct charge charge;
    CUdeviceptr at = 0;
    size_t stride = 0;
    CUresult result = begin(&charge, rows(padded(width), height));
    if (result != CUDA_SUCCESS)
        return result;
    result = real.cuMemAllocPitch_v2(out ? &at : NULL, pitch ? &stride : NULL, width, height, element);
    result = finish(&charge, result, at, rows(stride, height));
    if (result == CUDA_SUCCESS && out)
        *out = at;
    if (result == CUDA_SUCCESS && pitch)
        *pitch = stride;
    return result;
}

CUresult hook_cuMemAllocPitch(CUdeviceptr_v1 *out, unsigned int *pitch, unsigned int width, unsigned int height,
                              unsigned int element) {
    struct charge charge;
    CUdeviceptr_v1 at = 0;
    unsigned int stride = 0;
    CUresult result = begin(&charge, rows(padded(width), height));
    if (result != CUDA_SUCCESS)
        return result;
    result = real.cuMemAllocPitch(out ? &at : NULL, pitch ? &stride : NULL, width, height, element);
    result = finish(&charge, result, at, rows(stride, height));
    if (result == CUDA_SUCCESS && out)
        *out = at;
    if (result == CUDA_SUCCESS && pitch)
        *pitch = stride;
    return result;
}

/* Linear memory that a dma-buf was made of: its charge is not in the table, and its count is the name of that. */
static bool was_exported(const struct allocation *item) {
    return item->kind == ALLOCATION_LINEAR && item->count != 0;
}

static bool any_export; /* ever: most programs make none, and every free asks */
static bool exporting;  /* lock: what is exported is out of the table for a moment */

static void forget_in_child(void) {
    exporting = false;
}

/* Let exported.c have the charge of linear memory that was not exported before. It is out of the table meanwhile: if
 * its context has ended then, so has the memory. */
static bool hand_over(struct allocation *item) {
    struct allocation old, context;
    uint64_t name = exported_name();
    bool kept = exported_range(name, item->card, item->bytes, item->key, IMPORTED_NOTHING);
    if (kept) {
        item->bytes = 0;
        item->count = (uint32_t)name;
    }
    if (allocation_put(item, &old) == ALLOCATION_REPLACED)
        allocation_discharge(&old);
    if (!allocation_get(ALLOCATION_CONTEXT, item->owner, &context) &&
        allocation_take(ALLOCATION_LINEAR, item->key, &old))
        allocation_discharge(&old);
    return kept;
}

uint64_t mem_export(CUdeviceptr base, bool *failed) {
    struct allocation item;
    *failed = false;
    fork_forgets(forget_in_child);
    __atomic_store_n(&any_export, true, __ATOMIC_SEQ_CST);
    spin_lock(&exporting);
    bool is_linear = allocation_get(ALLOCATION_LINEAR, base, &item) && item.kind == ALLOCATION_LINEAR;
    if (is_linear && was_exported(&item))
        exported_pin(item.count, 1);
    else if (is_linear && allocation_take(ALLOCATION_LINEAR, base, &item))
        *failed = !hand_over(&item);
    spin_unlock(&exporting);
    return is_linear ? item.count : 0;
}

bool mem_is_exported(CUdeviceptr base, uint64_t name) {
    struct allocation item;
    bool is_linear, found = allocation_get(ALLOCATION_LINEAR, base, &item);
    is_linear = found && item.kind == ALLOCATION_LINEAR;
    return name ? is_linear && item.count == name : found && !is_linear;
}

/* What was exported is pinned before it is out of the table, because it may come back. */
static bool take_exported(CUdeviceptr pointer, struct allocation *item) {
    struct allocation there;
    spin_lock(&exporting);
    bool pinned = allocation_get(ALLOCATION_LINEAR, pointer, &there) && was_exported(&there);
    if (pinned)
        exported_pin(there.count, 1);
    bool known = allocation_take(ALLOCATION_LINEAR, pointer, item);
    if (pinned && !(known && was_exported(item)))
        exported_pin(there.count, -1);
    spin_unlock(&exporting);
    return known;
}

/* The item goes before the call: from then on the driver may hand the same pointer to another thread. */
bool mem_leave(CUdeviceptr pointer, struct allocation *item) {
    if (!pointer)
        return false;
    if (!__atomic_load_n(&any_export, __ATOMIC_SEQ_CST) && allocation_take(ALLOCATION_LINEAR, pointer, item))
        return true;
    return __atomic_load_n(&any_export, __ATOMIC_SEQ_CST) && take_exported(pointer, item);
}

/* A free that failed: the memory is there, unless its context has ended meanwhile. Pools belong to no context. */
static void put_back(const struct allocation *item) {
    struct allocation old;
    if (item->kind == ALLOCATION_LINEAR || item->kind == ALLOCATION_SMALL || item->kind == ALLOCATION_MANAGED)
        context_keep(item, CONTEXT_UNSEEN);
    else if (allocation_put(item, &old) == ALLOCATION_REPLACED)
        allocation_discharge(&old);
}

void mem_left(bool known, const struct allocation *item, CUresult result) {
    if (known && result == CUDA_SUCCESS)
        allocation_discharge(item);
    else if (known)
        put_back(item);
    else if (result == CUDA_SUCCESS)
        pool_account_touched(); /* a graph's memory, perhaps */
    if (known && was_exported(item)) {
        exported_pin(item->count, -1);
        exported_settle();
    }
}

/* This free waits for the card, so a pool whose memory it was has given back by now what it will not keep. */
static CUresult left(bool known, const struct allocation *item, CUresult result) {
    mem_left(known, item, result);
    if (result == CUDA_SUCCESS && known && item->kind == ALLOCATION_ASYNC)
        pool_account_synchronised();
    return result;
}

CUresult hook_cuMemFree_v2(CUdeviceptr pointer) {
    struct allocation item;
    bool known = mem_leave(pointer, &item);
    return left(known, &item, real.cuMemFree_v2(pointer));
}

CUresult hook_cuMemFree(CUdeviceptr_v1 pointer) {
    struct allocation item;
    bool known = mem_leave(pointer, &item);
    return left(known, &item, real.cuMemFree(pointer));
}
