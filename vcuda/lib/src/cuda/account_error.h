/* By how much the account may be wrong, since launches that are not measured are charged the mean of their kind.
 *
 * A window takes launches at random, so those that it measures stand for those that were tallied since the window
 * before: by as much as their mean differs from what these were charged, these may have been charged too little or too
 * much. The squares of that, kind by kind and window by window, add up to the variance of the account.
 *
 * Kept beside the table of costs; only the thread that settles calls this.
 */
#ifndef VCUDA_ACCOUNT_ERROR_H
#define VCUDA_ACCOUNT_ERROR_H

#include "cuda/cost.h"
#include "vcuda_page.h"

/* Launches of the kind were charged `ns` by its mean; what was measured before stands for those before. */
void account_error_tallied(struct vcuda_card_usage *usage, const struct cost *cost, uint64_t ns);

/* A launch of the kind was measured, and `charge_ns` is what it added. To be told before `cost_measured`. */
void account_error_measured(const struct cost *cost, uint64_t charge_ns);

#endif
