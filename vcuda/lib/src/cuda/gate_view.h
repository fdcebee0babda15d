/* The gate files of the container's cards, as mapped into this process. */
#ifndef VCUDA_GATE_VIEW_H
#define VCUDA_GATE_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "page.h"

/* Map the gate of this card of the control pages, identified by its UUID; NULL if none is mounted. A container that was
 * created before it became best-effort has no gate; it only keeps its work in flight short. */
const struct vcuda_gate *gate_view(int card, const uint8_t uuid[16]);

/* The gate of this card if it is already mapped; NULL otherwise. */
const struct vcuda_gate *gate_mapped(int card);

/* True if the card's gate is closed, or was opened or closed after `since`. False if this process has no gate. */
bool gate_was_moved(int card, uint64_t since);

#endif
