/* Estimates by how much the core-time account may be wrong, since launches that are not measured are charged the mean
 * of their kind.
 *
 * Measuring windows open at random, so the launches measured in a window represent those that were charged by the mean
 * since the previous window. The difference between the two is the error of that interval. Its squares, summed over
 * kinds and windows, are the variance of the account.
 *
 * Kept beside the table of costs; only the settling thread calls these functions. */
#ifndef VCUDA_ACCOUNT_ERROR_H
#define VCUDA_ACCOUNT_ERROR_H

#include "cuda/cost.h"
#include "vcuda_page.h"

/* Record that launches of this kind were charged `ns` by the mean. Closes the previous window of the kind if there was
 * one. */
void account_error_tallied(struct vcuda_card_usage *usage, const struct cost *cost, uint64_t ns);

/* Record that a launch of this kind was measured at `charge_ns`. Call before `cost_measured`. */
void account_error_measured(const struct cost *cost, uint64_t charge_ns);

#endif
