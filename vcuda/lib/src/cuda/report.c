/* How much memory the card has: the container's share, as if it were the card, and never more than the card. */
#include "attachment.h"
#include "cuda/account.h"
#include "cuda/context_registry.h"
#include "cuda/device_map.h"
#include "cuda/exported.h"
#include "cuda/pool_account.h"
#include "interposer.h"
#include "accounts.h"
#include "page.h"

struct view {
    uint64_t total, free;
};

/* Dead processes' bytes are looked for twice a second by whoever asks: nobody reads them for a second. */
static void heal(void) {
    static uint64_t last;
    uint64_t now = vcuda_now_ns(), before = __atomic_load_n(&last, __ATOMIC_RELAXED);
    if (now - before > 400000000u &&
        __atomic_compare_exchange_n(&last, &before, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        vcuda_reap();
}

static uint64_t least(uint64_t left, uint64_t right) {
    return left < right ? left : right;
}

/* The card as it is → the share. With oversubscription a full card is no bound. */
static void show_share(int card, struct view *view) {
    pool_account_synchronised();
    exported_settle();
    heal();
    const struct vcuda_limits_view *all = vcuda_limits();
    const struct vcuda_card_limits *limits = account_limits(card);
    if (!limits)
        return;
    uint64_t used = account_used(card, limits);
    view->total = least(limits->memory_limit, view->total);
    uint64_t left = view->total > used ? view->total - used : 0;
    view->free = all->flags & VCUDA_FLAG_OVERSUBSCRIBE ? left : least(left, view->free);
}

/* After the driver's answer, with pointers that may be NULL: which card is it, and what does it really have? */
static bool look(const size_t *free_bytes, const size_t *total, struct current_context *where, struct view *view) {
    if (vcuda_attached() != VCUDA_ATTACHED || !context_current(where) || where->card < 0)
        return false;
    size_t left = free_bytes ? *free_bytes : 0, whole = total ? *total : 0;
    if ((!free_bytes || !total) && real.cuMemGetInfo_v2(&left, &whole) != CUDA_SUCCESS)
        return false;
    *view = (struct view){.total = whole, .free = left};
    return true;
}

CUresult hook_cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    struct current_context where;
    struct view view;
    CUresult result = real.cuMemGetInfo_v2(free_bytes, total);
    if (result != CUDA_SUCCESS || !look(free_bytes, total, &where, &view))
        return result;
    show_share(where.card, &view);
    if (free_bytes)
        *free_bytes = view.free;
    if (total)
        *total = view.total;
    return result;
}

CUresult hook_cuMemGetInfo(unsigned int *free_bytes, unsigned int *total) {
    struct current_context where;
    struct view view;
    CUresult result = real.cuMemGetInfo(free_bytes, total);
    if (result != CUDA_SUCCESS || !look(NULL, NULL, &where, &view))
        return result;
    show_share(where.card, &view);
    if (free_bytes)
        *free_bytes = (unsigned int)least(view.free, UINT32_MAX);
    if (total)
        *total = (unsigned int)least(view.total, UINT32_MAX);
    return result;
}

static uint64_t share_of(CUdevice device, uint64_t total) {
    if (vcuda_attached() != VCUDA_ATTACHED)
        return total;
    const struct vcuda_card_limits *limits = account_limits(device_map_card(device));
    return limits ? least(limits->memory_limit, total) : total;
}

CUresult hook_cuDeviceTotalMem_v2(size_t *total, CUdevice device) {
    CUresult result = real.cuDeviceTotalMem_v2(total, device);
    if (result == CUDA_SUCCESS && total)
        *total = share_of(device, *total);
    return result;
}

CUresult hook_cuDeviceTotalMem(unsigned int *total, CUdevice device) {
    size_t whole;
    CUresult result = real.cuDeviceTotalMem(total, device);
    if (result == CUDA_SUCCESS && total && real.cuDeviceTotalMem_v2(&whole, device) == CUDA_SUCCESS)
        *total = (unsigned int)least(share_of(device, whole), UINT32_MAX);
    return result;
}
