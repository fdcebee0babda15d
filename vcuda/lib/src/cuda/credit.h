/* Decides whether the core limit lets a launch go ahead now. Does not sleep and does not call the driver. */
#ifndef VCUDA_CREDIT_H
#define VCUDA_CREDIT_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda/window_cap.h"
#include "page.h"

/* The state of one card on which a launch's credit is decided. Times in ns. */
struct credit {
    struct vcuda_card_usage *usage;
    const struct vcuda_limits_view *view;
    struct window_cap *cap;
    int card;
    uint64_t ahead_ns; /* work of this process that is paid for and not yet measured */
    uint64_t gated_ns; /* the part of `ahead_ns` that waits at a gate on its streams */
    uint64_t stuck_ns; /* the part of `ahead_ns` that waits for what the program has yet to do */
    uint64_t moved_at; /* when the oldest piece of that work began, or the piece before it was measured */
    uint64_t now;
    uint64_t waited_ns;
};

/* Time until the queue ahead of the card may have room; 0: now. */
uint64_t credit_room_ns(const struct credit *a);

/* True if all that work stands still: a stream may wait for a value that the launching thread will write. */
bool credit_ahead_is_stuck(const struct credit *a);

/* Time until work that costs `ns` may start; 0: now, and *taken_ns (at least `ns`) was taken from the credit. */
uint64_t credit_take_ns(const struct credit *a, uint64_t ns, uint64_t *taken_ns);

/* True if the launch has waited too long and must go ahead: work of other processes or cards may depend on it. */
bool credit_is_overdue(const struct credit *a);

#endif
