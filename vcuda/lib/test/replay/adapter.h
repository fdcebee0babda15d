/* The library's own limiter for the replayer: the arithmetic of src/, with the modelled driver in the driver's place.
 */
#ifndef VCUDA_REPLAY_ADAPTER_H
#define VCUDA_REPLAY_ADAPTER_H

#include "limiter_under_test.h"

extern const struct limiter limiter_libvcuda;

#endif
