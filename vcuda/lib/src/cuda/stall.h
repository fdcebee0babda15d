/* By how much others' turns interrupted launches of known length: evidence against a neighbour that gave itself a
 * longer time slice than others have. The host judges it; see struct vcuda_card_usage.
 *
 * A launch's length is known by the most that its kind took while the host said that the container had the card to
 * itself, over STALL_SURE_NS before and after. What varies by itself varies then, too. Only what fits into one turn is
 * judged, since it can be interrupted once. Arithmetic alone: the one that settles calls this.
 */
#ifndef VCUDA_STALL_H
#define VCUDA_STALL_H

#include "cuda/cost.h"
#include "page.h"

#include <stdbool.h>

#define STALL_SURE_NS 300000000u /* the host tells of others with a delay */
#define STALL_RUNS 32u           /* as many alone, before the length is known */
#define STALL_KNOWN_MOST_NS 1000000u
#define STALL_LEAST_NS 8000000u /* more than three turns of 2 to 2.5 ms */

/* A launch of this kind, beside no other work of its process, took so long. `shared`: others used the card. */
void stall_measured(struct vcuda_card_usage *usage, const struct cost *cost, uint64_t took_ns, bool shared,
                    uint64_t now);

#endif
