/* What its limit takes from a container: the time for which launches are held back while nothing of it is in flight on
 * the card. Waits that overlap its own work cost it nothing, and each moment counts once, however many threads and
 * processes wait in it. Lock-free. Times are CLOCK_MONOTONIC in ns. */
#ifndef VCUDA_HELD_IDLE_H
#define VCUDA_HELD_IDLE_H

#include <stdint.h>

#include "page.h"

/* Work of the container, launched at `launched`, ran on this card until `end`: it was in flight, as long as others made
 * it wait and take. */
void held_idle_ran(struct vcuda_card_usage *usage, uint64_t launched, uint64_t end);

/* A thread has been held back on this card from `since` to `now`, and goes on being. */
void held_idle_waited(struct vcuda_usage *usage, int card, uint64_t since, uint64_t now);

#endif
