/* What a launch of each kind costs a card that runs nothing else. A launch measured beside other containers' work
 * appears longer, and one whose thread was preempted between two calls appears shorter; both are then charged by this
 * estimate. Kept apart from the table of costs because launching threads do not read it. Only the settling thread calls
 * these functions. Times in ns. */
#ifndef VCUDA_ALONE_COST_H
#define VCUDA_ALONE_COST_H

#include "cuda/cost.h"

/* The estimate; 0 if it is not known yet. */
uint64_t alone_cost_ns(const struct cost *cost);

/* A launch took `ns` while no other container had work on the card. The estimate is the maximum of the first
 * ALONE_COST_RUNS launches, then a mean of that and later launches, over at most the last ALONE_COST_AGE_NS. */
#define ALONE_COST_RUNS 4
#define ALONE_COST_AGE_NS 3000000000u
void alone_cost_ran(const struct cost *cost, uint64_t ns, uint64_t now);

/* A launch took `ns` while other containers may have had work on the card. If ALONE_COST_RUNS launches in a row were
 * below the estimate, their maximum becomes the estimate. Longer ones are ignored: each may have met another
 * container's kernel. */
void alone_cost_ran_crossed(const struct cost *cost, uint64_t ns);

/* A launch took `ns` while other containers have work on the card intermittently. Judged every ALONE_COST_MIXED_NS: if
 * at least ALONE_COST_RUNS launches and a quarter of all took less than half of the estimate, the longest of the
 * shortest ALONE_COST_RUNS becomes the estimate. Otherwise the shortest of at least ALONE_COST_MIXED_RUNS does, if it
 * exceeds the estimate by an eighth and some launch took longer than other containers' work can explain (`explained`
 * false), or if it is twice the estimate. */
#define ALONE_COST_MIXED_RUNS 16
#define ALONE_COST_MIXED_NS 500000000u
void alone_cost_ran_mixed(const struct cost *cost, uint64_t ns, bool explained, uint64_t now);

#endif
