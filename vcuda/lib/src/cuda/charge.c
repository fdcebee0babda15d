#include "cuda/charge.h"

#include "cuda/account.h"
#include "cuda/context_registry.h"
#include "cuda/device_map.h"
#include "cuda/pool_account.h"

CUresult charge_on(struct charge *charge, int card, uint64_t bytes) {
    charge->where.card = card;
    charge->bytes = bytes;
    return pool_account_reserve(card, bytes);
}

CUresult charge_here(struct charge *charge, uint64_t bytes) {
    bool refused;
    *charge = (struct charge){.where = {.card = CARD_NONE}};
    if (!account_open(&refused))
        return refused ? CUDA_ERROR_SYSTEM_NOT_READY : CUDA_SUCCESS;
    struct current_context where;
    if (!context_current(&where))
        return CUDA_SUCCESS;
    charge->where = where;
    charge->where.owner = context_owner(where.owner);
    return charge_on(charge, where.card, bytes);
}

bool charge_counts(const struct charge *charge) {
    return charge->where.card >= 0;
}

bool charge_resize(struct charge *charge, uint64_t bytes) {
    if (!charge_counts(charge))
        return true;
    if (bytes > charge->bytes && pool_account_reserve(charge->where.card, bytes - charge->bytes) != CUDA_SUCCESS)
        return false;
    if (bytes < charge->bytes)
        account_return(charge->where.card, charge->bytes - bytes);
    charge->bytes = bytes;
    return true;
}

void charge_undo(struct charge *charge) {
    if (charge_counts(charge))
        account_return(charge->where.card, charge->bytes);
    charge->bytes = 0;
}
