#include "cuda/claim.h"

#include "cuda/account.h"
#include "cuda/context_registry.h"
#include "cuda/device_map.h"
#include "cuda/pool_account.h"

CUresult claim_on(struct claim *claim, int card, uint64_t bytes) {
    claim->where.card = card;
    claim->bytes = bytes;
    return pool_account_reserve(card, bytes);
}

CUresult claim_here(struct claim *claim, uint64_t bytes) {
    bool refused;
    *claim = (struct claim){.where = {.card = CARD_NONE}};
    if (!account_open(&refused))
        return refused ? CUDA_ERROR_SYSTEM_NOT_READY : CUDA_SUCCESS;
    struct current_context where;
    if (!context_current(&where))
        return CUDA_SUCCESS;
    claim->where = where;
    claim->where.owner = context_owner(where.owner);
    return claim_on(claim, where.card, bytes);
}

bool claim_counts(const struct claim *claim) {
    return claim->where.card >= 0;
}

bool claim_resize(struct claim *claim, uint64_t bytes) {
    if (!claim_counts(claim))
        return true;
    if (bytes > claim->bytes && pool_account_reserve(claim->where.card, bytes - claim->bytes) != CUDA_SUCCESS)
        return false;
    if (bytes < claim->bytes)
        account_return(claim->where.card, claim->bytes - bytes);
    claim->bytes = bytes;
    return true;
}

void claim_undo(struct claim *claim) {
    if (claim_counts(claim))
        account_return(claim->where.card, claim->bytes);
    claim->bytes = 0;
}
