/* Memory that other processes may have been given: who holds it after this process has let go of it? */
#ifndef VCUDA_EXPORTED_H
#define VCUDA_EXPORTED_H

#include <stdbool.h>
#include <stdint.h>

/* A block or multicast object is named by a number, never used twice. */
uint64_t exported_name(void);

/* It was exported as `fd`, a descriptor, or as something that leaves no trace (fd < 0). */
void exported_as(uint64_t name, int fd);

/* This process has let go of it: give `bytes` of the card back, now or once nothing else can hold it. */
void exported_let_go(uint64_t name, int card, uint64_t bytes);

/* A dma-buf is watched from now on: its number, 0 if it cannot be. Memory of this name is what it is made of; false
 * without memory to note it. */
uint64_t exported_watch(int fd);
bool exported_as_watched(uint64_t name, uint64_t number);

/* From now on the charge of `bytes` of the card is given back here alone, once nothing holds what was exported by this
 * name, and linear memory `at` (if not 0) is no longer in the table with the low half of the name as its count. An
 * import's descriptor (or IMPORTED_NOTHING) is closed with it. False without memory to note it.
 *
 * Linear memory is pinned until who asked for this unpins it, and by whoever frees it: what is out of the table then
 * may come back. */
bool exported_range(uint64_t name, int card, uint64_t bytes, uint64_t at, int held);
void exported_pin(uint32_t name, int by);

/* Look again at what waits for others to let go. */
void exported_settle(void);

#endif
