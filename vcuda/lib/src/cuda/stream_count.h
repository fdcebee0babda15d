/* How many streams each context has. */
#ifndef VCUDA_STREAM_COUNT_H
#define VCUDA_STREAM_COUNT_H

#include <stdint.h>

/* Increment or decrement the number of streams of the context with this id. stream_count_up() returns the new number;
 * 0: out of memory. */
uint32_t stream_count_up(uint64_t owner);
void stream_count_down(uint64_t owner);

#endif
