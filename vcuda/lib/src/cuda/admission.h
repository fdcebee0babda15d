/* May a launch go ahead now? The decision of the core limit, apart from sleeping and from the driver. */
#ifndef VCUDA_ADMISSION_H
#define VCUDA_ADMISSION_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda/window_cap.h"
#include "page.h"

/* One card, as it is at the moment of asking. Times in ns. */
struct admission {
    struct vcuda_card_usage *usage;
    const struct vcuda_limits_view *view;
    struct window_cap *cap;
    int card;
    uint64_t ahead_ns; /* paid for by this process, and not yet measured */
    uint64_t gated_ns; /* of it, what waits at a gate by itself */
    uint64_t now;
    uint64_t waited_ns;
};

/* How long until there may be room in the queue ahead of the card; 0: now. */
uint64_t admission_room_ns(const struct admission *a);

/* How long until work that costs `ns` may start; 0: now, and *taken_ns, at least `ns`, has been taken of the credit. */
uint64_t admission_credit_ns(const struct admission *a, uint64_t ns, uint64_t *taken_ns);

/* It has waited so long that work of other processes or cards may be waiting for it: it goes ahead. */
bool admission_is_overdue(const struct admission *a);

#endif
