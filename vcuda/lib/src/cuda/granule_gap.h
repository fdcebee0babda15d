/* Small allocations share granules: is there room for one more in what is charged already? */
#ifndef VCUDA_GRANULE_GAP_H
#define VCUDA_GRANULE_GAP_H

#include <stdbool.h>
#include <stdint.h>

/* Does a granule that holds small allocations of this context have a gap of `bytes` between them? Looks at all of
 * them: for when the limit is reached, not for every allocation. */
bool granule_gap(uint64_t context, uint64_t bytes);

#endif
