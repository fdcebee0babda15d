/* Measures by how much other containers' time slices interrupted launches of known duration: evidence against a
 * neighbour that gave itself a longer time slice. The host judges it; see struct vcuda_card_usage.
 *
 * The known duration is the maximum for the kind while, according to the host, the container had the card to itself for
 * STALL_SURE_NS before and after. So variation of the kernel itself is included. Only launches that fit into one time
 * slice are judged, since they can be interrupted once. Arithmetic only; called by the settling thread. */
#ifndef VCUDA_STALL_H
#define VCUDA_STALL_H

#include "cuda/cost.h"
#include "page.h"

#include <stdbool.h>

#define STALL_SURE_NS 300000000u /* the host reports other containers with a delay */
#define STALL_RUNS 32u           /* launches observed alone before the duration counts as known */
#define STALL_KNOWN_MOST_NS 1000000u
#define STALL_LEAST_NS 8000000u /* more than three time slices of 2 to 2.5 ms */

/* A launch of this kind, beside no other work of its process, took `took_ns`. `shared`: other containers used the card.
 */
void stall_measured(struct vcuda_card_usage *usage, const struct cost *cost, uint64_t took_ns, bool shared,
                    uint64_t now);

#endif
