/* How many streams each context has. */
#ifndef VCUDA_STREAM_COUNT_H
#define VCUDA_STREAM_COUNT_H

#include <stdint.h>

/* One more of the context with this id, or one less. Up: how many it has then; 0: there is no memory to count them. */
uint32_t stream_count_up(uint64_t owner);
void stream_count_down(uint64_t owner);

#endif
