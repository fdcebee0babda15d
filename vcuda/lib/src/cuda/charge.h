/* A reservation on its way: made before the driver's call, kept or undone after it. */
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

/* Reserve on the card of the calling thread's context. Anything but CUDA_SUCCESS is the hook's answer. */
CUresult charge_here(struct charge *charge, uint64_t bytes);

/* Reserve on this card. */
CUresult charge_on(struct charge *charge, int card, uint64_t bytes);

/* Is there anything to remember of it? */
bool charge_counts(const struct charge *charge);

/* What the driver took turns out to be `bytes`; false if the limit forbids what is missing. */
bool charge_resize(struct charge *charge, uint64_t bytes);

void charge_undo(struct charge *charge);

#endif
