/* By how much other containers on a card stretch this one's work, so that measured time can be divided by it. Processes
 * of one container are not divided: what they had in flight together is bounded by their page's timeline (timeline.h).
 *
 * The host knows all containers of a card and says so ten times a second. While it says nothing, work whose cost is
 * known tells how many it shares the card with; work of unknown cost is divided by the mean of what the host said last.
 */
#ifndef VCUDA_SHARERS_H
#define VCUDA_SHARERS_H

#include <stdint.h>

#include "page.h"

/* Remember what the host says now. Only the one that settles calls this, while the card has work. `view` may be NULL.
 */
void sharers_look(const struct vcuda_limits_view *view, int card, uint64_t now);

/* The divisor x 256, at least 256. */
uint32_t sharers_now(const struct vcuda_limits_view *view, int card, uint64_t now);

/* The same for work that took `elapsed_ns` and takes `expected_ns` of a card of its own. */
uint32_t sharers_during(const struct vcuda_limits_view *view, int card, uint64_t now, uint64_t elapsed_ns,
                        uint64_t expected_ns);

#endif
