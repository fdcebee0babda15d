/* The limiters that the program `replay` knows by name. */
#include "adapter.h"
#include "limiters_reference.h"

const struct limiter *const limiters[] = {
    &limiter_perfect,  &limiter_window, &limiter_none, &limiter_generous, &limiter_stingy,
    &limiter_bursting, &limiter_sum,    &limiter_span, &limiter_libvcuda,
};
const size_t limiters_count = sizeof limiters / sizeof *limiters;
