/* Linear memory that descriptors of address ranges (dma-buf) keep. */
#ifndef STANDIN_VMM_H
#define STANDIN_VMM_H

#include <stdbool.h>
#include <stdint.h>

/* The allocation at `base` is freed: true if a descriptor keeps its `bytes` on the card until the last one is closed.
 * With the process locked. */
bool range_keeps(uintptr_t base, int64_t bytes);

#endif
