#include "cuda/account.h"

#include "attachment.h"
#include "cuda/device_map.h"
#include "accounts.h"

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

/* What the accounts may reach: the limit less what the host sees beyond the accounts. */
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

void account_movable(uint64_t bytes) {
    accounts_add_movable(bytes);
}

void account_movable_return(int card, uint64_t bytes) {
    account_return(card, bytes);
    accounts_add_movable(-bytes);
}

/* What the host saw of the charge beyond the driver's count, as far as it is still charged: others of the container
 * draw on the same figure, and what is charged may have been given back for other reasons. */
static uint64_t still_beyond(int card, const struct vcuda_card_limits *limits, uint64_t returned) {
    uint64_t seen = limits->host_excess > returned ? limits->host_excess - returned : 0;
    uint64_t charged = vcuda_charged(card), elsewhere = accounts_movable();
    uint64_t now = charged > elsewhere ? charged - elsewhere : 0;
    uint64_t beyond = now > limits->host_counted ? now - limits->host_counted : 0;
    return seen < beyond ? seen : beyond;
}

/* With oversubscription memory may be off the card for other reasons than that it is gone. */
uint64_t account_seen_gone(int card, uint64_t bytes, uint64_t let_go_ns) {
    const struct vcuda_limits_view *view = vcuda_limits();
    const struct vcuda_card_limits *limits = limits_of(card);
    struct vcuda_usage *usage = vcuda_usage();
    if (!usage || !limits || (view->flags & VCUDA_FLAG_OVERSUBSCRIBE) || limits->host_looked_ns <= let_go_ns)
        return 0;
    uint64_t *word = &usage->card[card].excess_returned, old = __atomic_load_n(word, __ATOMIC_SEQ_CST);
    uint64_t time = limits->host_looked_ns >> 20 << VCUDA_CHARGED_BITS; /* about a millisecond; 16 bits of them stay */
    for (;;) {
        uint64_t returned = (old & ~VCUDA_CHARGED_MASK) == time ? old & VCUDA_CHARGED_MASK : 0;
        uint64_t left = still_beyond(card, limits, returned), mine = (bytes < left ? bytes : left) / GRANULE * GRANULE;
        if (!mine)
            return 0;
        if (__atomic_compare_exchange_n(word, &old, time | (returned + mine), false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST))
            return mine;
    }
}
