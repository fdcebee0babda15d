/* Memory that was exported to other processes: finds out who holds it after this process has released it. Any thread
 * may call. */
#ifndef VCUDA_EXPORTED_H
#define VCUDA_EXPORTED_H

#include <stdbool.h>
#include <stdint.h>

/* A new name for an exported block or multicast object; names are never reused. */
uint64_t exported_name(void);

/* Record that the block was exported as descriptor `fd`, or in a form that cannot be traced (fd < 0). */
void exported_as(uint64_t name, int fd);

/* This process has released the block: return `bytes` of the card, now or once nothing else can hold it. */
void exported_let_go(uint64_t name, int card, uint64_t bytes);

/* exported_watch() begins to watch a dma-buf and returns its number, 0 if it cannot be watched. exported_as_watched()
 * records that memory of this name backs it; false if out of memory. */
uint64_t exported_watch(int fd);
bool exported_as_watched(uint64_t name, uint64_t number);

/* From now on the charge of `bytes` is returned only here: once nothing holds the exports of this name, and linear
 * memory `at` (if not 0) has left the table (its item has the low half of the name as count). An import's descriptor
 * `held` (or IMPORTED_NOTHING) is closed with it. False if out of memory.
 *
 * Linear memory stays pinned until the caller unpins it, and while it is being freed: an item that has left the table
 * may come back if the driver refuses to free it. */
bool exported_range(uint64_t name, int card, uint64_t bytes, uint64_t at, int held);
void exported_pin(uint32_t name, int by);

/* Check again the blocks that wait for other processes to release them. */
void exported_settle(void);

#endif
