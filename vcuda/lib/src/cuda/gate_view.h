/* The gates of the container's cards, as this process has them mapped. */
#ifndef VCUDA_GATE_VIEW_H
#define VCUDA_GATE_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "page.h"

/* The gate of this card of the pages, whose UUID that is; NULL: none is mounted. A container that was made before it
 * was best-effort has none: it keeps what it has in flight short, and that is all. */
const struct vcuda_gate *gate_view(int card, const uint8_t uuid[16]);

/* The same if it is mapped by now. */
const struct vcuda_gate *gate_mapped(int card);

/* Is the card's gate closed, or was it opened or closed since? False where this process has none. */
bool gate_was_moved(int card, uint64_t since);

#endif
