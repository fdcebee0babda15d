/* Estimates by how much other containers on a card stretch this container's work: the divisor for measured time.
 * Processes of one container are not divided: their work in flight is bounded by the page's timeline (timeline.h).
 *
 * The host knows all containers of a card and publishes the figure ten times a second. While it publishes none, work of
 * known cost shows how many containers share the card; work of unknown cost is divided by the mean of the last
 * published figures. */
#ifndef VCUDA_SHARERS_H
#define VCUDA_SHARERS_H

#include <stdint.h>

#include "page.h"

/* Record the figure that the host publishes now. Called only by the settling thread, while the card has work. `view`
 * may be NULL. */
void sharers_look(const struct vcuda_limits_view *view, int card, uint64_t now);

/* The divisor x 256, at least 256. */
uint32_t sharers_now(const struct vcuda_limits_view *view, int card, uint64_t now);

/* The greatest figure x 256 of the last seconds that the host spoke; 0: it has not spoken. */
uint32_t sharers_most(int card);

/* The greatest number of processes that had work at the same time in the last seconds, x 256. At least sharers_now().
 * `view` is not NULL. */
uint32_t sharers_peak(const struct vcuda_limits_view *view, int card, uint64_t now);

/* The divisor x 256 for work that took `elapsed_ns` and would take `expected_ns` on a card of its own. */
uint32_t sharers_during(const struct vcuda_limits_view *view, int card, uint64_t now, uint64_t elapsed_ns,
                        uint64_t expected_ns);

#endif
