/* Time that the core limit costs a container: launches are held back while none of its work is in flight on the card.
 * Waits that overlap its own work do not count, and each moment counts once, however many threads and processes wait.
 * Lock-free. Times are CLOCK_MONOTONIC in ns. */
#ifndef VCUDA_HELD_IDLE_H
#define VCUDA_HELD_IDLE_H

#include <stdint.h>

#include "page.h"

/* Work of the container, launched at `launched`, ran on this card until `end`. It counts as in flight for all of that
 * time, including time in which other work delayed it. */
void held_idle_ran(struct vcuda_card_usage *usage, uint64_t launched, uint64_t end);

/* A thread has been held back on this card from `since` to `now`, and still is. */
void held_idle_waited(struct vcuda_usage *usage, int card, uint64_t since, uint64_t now);

#endif
