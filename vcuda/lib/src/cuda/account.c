#include "cuda/account.h"

#include "attachment.h"
#include "cuda/device_map.h"
#include "ledger.h"

uint64_t granules(uint64_t bytes) {
    return bytes > UINT64_MAX - (GRANULE - 1) ? UINT64_MAX : (bytes + GRANULE - 1) / GRANULE * GRANULE;
}

bool account_open(bool *refused) {
    enum vcuda_attachment attachment = vcuda_attached();
    if (__builtin_expect(attachment == VCUDA_DETACHED, 0))
        attachment = vcuda_attach();
    *refused = attachment == VCUDA_REFUSED;
    return attachment == VCUDA_ATTACHED;
}

static const struct vcuda_card_limits *limits_of(int card) {
    const struct vcuda_limits_view *view = vcuda_limits();
    return view && card >= 0 && (uint32_t)card < view->card_count ? &view->card[card] : NULL;
}

const struct vcuda_card_limits *account_limits(int card) {
    const struct vcuda_card_limits *limits = limits_of(card);
    return limits && (limits->mode & VCUDA_MODE_MEMORY_LIMITED) ? limits : NULL;
}

/* What the ledger may reach: the limit less what the host sees beyond the ledger. */
static uint64_t ceiling(const struct vcuda_card_limits *limits) {
    if (!(limits->mode & VCUDA_MODE_MEMORY_LIMITED))
        return VCUDA_CHARGED_MASK;
    uint64_t limit = limits->memory_limit < VCUDA_CHARGED_MASK ? limits->memory_limit : VCUDA_CHARGED_MASK;
    return limit > limits->host_adjust ? limit - limits->host_adjust : 0;
}

uint64_t account_used(int card, const struct vcuda_card_limits *limits) {
    uint64_t charged = vcuda_charged(card);
    return limits->host_adjust < UINT64_MAX - charged ? charged + limits->host_adjust : UINT64_MAX;
}

uint64_t account_context_bytes(int card) {
    const struct vcuda_card_limits *limits = limits_of(card);
    return limits ? limits->context_reserve : 0;
}

static bool fits(int card, uint64_t bytes, uint64_t limit) {
    uint64_t charged = vcuda_charged(card);
    return charged <= limit && bytes <= limit - charged;
}

bool account_fits(int card, uint64_t bytes) {
    const struct vcuda_card_limits *limits = limits_of(card);
    return limits && fits(card, bytes, ceiling(limits));
}

bool account_makes_room(int card, uint64_t bytes) {
    const struct vcuda_card_limits *limits = limits_of(card);
    if (__builtin_expect(!limits || fits(card, bytes, ceiling(limits)), 1))
        return true;
    vcuda_reap();
    return fits(card, bytes, ceiling(limits));
}

CUresult account_reserve(int card, uint64_t bytes) {
    if (card == CARD_NONE || bytes == 0)
        return CUDA_SUCCESS;
    const struct vcuda_card_limits *limits = limits_of(card);
    if (!limits)
        return CUDA_ERROR_OUT_OF_MEMORY; /* of a card that was not given there is nothing */
    return vcuda_charge(card, bytes, ceiling(limits)) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void account_taken(int card, uint64_t bytes) {
    if (card >= 0 && bytes)
        vcuda_charge_taken(card, bytes);
}

void account_return(int card, uint64_t bytes) {
    if (card >= 0 && bytes)
        vcuda_discharge(card, bytes);
}
