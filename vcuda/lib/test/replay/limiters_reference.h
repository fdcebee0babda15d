/* Limiters that show whether the judge is right: two that must hold every bar, and one for each way to be wrong. */
#ifndef VCUDA_REPLAY_LIMITERS_REFERENCE_H
#define VCUDA_REPLAY_LIMITERS_REFERENCE_H

#include "limiter_under_test.h"

extern const struct limiter limiter_perfect;  /* knows what each kernel does on the card; 3 ms of credit */
extern const struct limiter limiter_window;   /* the same, and whatever a window has room for may run at once */
extern const struct limiter limiter_none;     /* holds nothing back and accounts for nothing */
extern const struct limiter limiter_generous; /* two points more than the limit */
extern const struct limiter limiter_stingy;   /* nine tenths of the limit */
extern const struct limiter limiter_bursting; /* right on average, 50 ms at once */
extern const struct limiter limiter_sum;      /* adds kernels up that run side by side */
extern const struct limiter limiter_span;     /* takes pauses below 1 ms between kernels as busy */

#endif
