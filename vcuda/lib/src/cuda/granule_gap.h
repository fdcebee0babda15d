/* Small allocations share granules: finds out whether one more fits into granules that are already charged. */
#ifndef VCUDA_GRANULE_GAP_H
#define VCUDA_GRANULE_GAP_H

#include <stdbool.h>
#include <stdint.h>

/* True if a granule with small allocations of this context has a gap of `bytes`. Scans all of them, so it is called
 * only when the limit is reached. */
bool granule_gap(uint64_t context, uint64_t bytes);

#endif
