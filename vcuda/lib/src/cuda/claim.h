/* A reservation on its way: made before the driver's call, kept or undone after it. */
#ifndef VCUDA_CLAIM_H
#define VCUDA_CLAIM_H

#include <stdbool.h>
#include <stdint.h>

#include "cu_types.h"
#include "cuda/context_registry.h"

struct claim {
    struct current_context where;
    uint64_t bytes;
};

/* Reserve on the card of the calling thread's context. Anything but CUDA_SUCCESS is the hook's answer. */
CUresult claim_here(struct claim *claim, uint64_t bytes);

/* Reserve on this card. */
CUresult claim_on(struct claim *claim, int card, uint64_t bytes);

/* Is there anything to remember of it? */
bool claim_counts(const struct claim *claim);

/* What the driver took turns out to be `bytes`; false if the limit forbids what is missing. */
bool claim_resize(struct claim *claim, uint64_t bytes);

void claim_undo(struct claim *claim);

#endif
