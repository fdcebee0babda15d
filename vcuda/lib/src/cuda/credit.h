/* Whether the core limit lets a launch go ahead now: the decision alone, without sleeping and without the driver. */
#ifndef VCUDA_CREDIT_H
#define VCUDA_CREDIT_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda/window_cap.h"
#include "page.h"

/* The credit that a launch may draw on: one card, as it is now. Times in ns. */
struct credit {
    struct vcuda_card_usage *usage;
    const struct vcuda_limits_view *view;
    struct window_cap *cap;
    int card;
    uint64_t ahead_ns; /* paid for by this process, and not yet measured */
    uint64_t gated_ns; /* of it, launches that wait at a gate on their streams */
    uint64_t now;
    uint64_t waited_ns;
};

/* How long until there may be room in the queue ahead of the card; 0: now. */
uint64_t credit_room_ns(const struct credit *a);

/* How long until work that costs `ns` may start; 0: now, and *taken_ns, at least `ns`, has been taken of the credit. */
uint64_t credit_take_ns(const struct credit *a, uint64_t ns, uint64_t *taken_ns);

/* True if the launch has waited so long that work of other processes or cards may wait for it: it goes ahead. */
bool credit_is_overdue(const struct credit *a);

#endif
