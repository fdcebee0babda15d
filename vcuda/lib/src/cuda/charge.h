/* A reservation around one driver call: made before the call, then kept or undone. */
#ifndef VCUDA_CHARGE_H
#define VCUDA_CHARGE_H

#include <stdbool.h>
#include <stdint.h>

#include "cu_types.h"
#include "cuda/context_registry.h"

struct charge {
    struct current_context where;
    uint64_t bytes;
};

/* Reserve on the card of the calling thread's context. A result other than CUDA_SUCCESS is what the hook returns. */
CUresult charge_here(struct charge *charge, uint64_t bytes);

/* Reserve on this card. */
CUresult charge_on(struct charge *charge, int card, uint64_t bytes);

/* True if there is a charge to record for this reservation. */
bool charge_counts(const struct charge *charge);

/* Adjust the reservation to the `bytes` that the driver actually took; false if the limit forbids the difference. */
bool charge_resize(struct charge *charge, uint64_t bytes);

void charge_undo(struct charge *charge);

#endif
