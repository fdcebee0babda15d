/* What a launch of a kind costs a card of its own. What runs while others' work is on the card seems longer, or where
 * a thread was stopped between two calls shorter: this is what it is then charged by. Kept beside the table of costs,
 * because launches do not look at it; only the one that settles calls these. */
#ifndef VCUDA_ALONE_COST_H
#define VCUDA_ALONE_COST_H

#include "cuda/cost.h"

/* 0: not known yet. */
uint64_t alone_cost_ns(const struct cost *cost);

/* One took so long, and nobody else's work came between. Known is the most of the first ALONE_COST_RUNS, then the
 * mean of that and of what follows, or an average over the last ALONE_COST_AGE_NS once that is shorter. */
#define ALONE_COST_RUNS 4
#define ALONE_COST_AGE_NS 3000000000u
void alone_cost_ran(const struct cost *cost, uint64_t ns, uint64_t now);

/* One took so long where others' work may have come between. What ALONE_COST_RUNS in a row took less than is known is
 * nearer to the truth: the most of them is known from then on. That many took more says nothing: each of a container's
 * launches may find another's kernel in flight. */
void alone_cost_ran_crossed(const struct cost *cost, uint64_t ns);

/* One took so long where others' work comes between now and then, but not always. Over ALONE_COST_MIXED_NS: where
 * ALONE_COST_RUNS or more and a quarter of all took less than half of what is known, the last of the shortest
 * ALONE_COST_RUNS is known from then on; else the shortest of ALONE_COST_MIXED_RUNS or more, if it took more by an
 * eighth and any took longer than others' work can explain, or if it took twice as long. */
#define ALONE_COST_MIXED_RUNS 16
#define ALONE_COST_MIXED_NS 500000000u
void alone_cost_ran_mixed(const struct cost *cost, uint64_t ns, bool explained, uint64_t now);

#endif
