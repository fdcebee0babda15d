/* The memory pool of each device for graphs. It is charged the greater of two amounts: what the driver has reserved for
 * it, and what launches that may not have ended can hold at once. Any thread may call. */
#ifndef VCUDA_GRAPH_POOL_H
#define VCUDA_GRAPH_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "cu_types.h"
#include "cuda/graph_backlog.h"

struct graph_pool;

/* The pool of a device; NULL if its number is too high for a process. */
struct graph_pool *graph_pool_of(CUdevice device, int card);

CUdevice graph_pool_device(const struct graph_pool *pool);

/* Append a launch to its stream's work if the charge suffices. Otherwise returns false, and *missing bytes must first
 * be reserved and added with graph_pool_add(). */
bool graph_pool_enter(struct graph_pool *pool, struct graph_stream stream, const struct graph_step *step,
                      uint64_t *missing);
void graph_pool_add(struct graph_pool *pool, uint64_t bytes);

/* Undo graph_pool_enter(): the driver refused the launch. */
void graph_pool_withdraw(struct graph_pool *pool, struct graph_stream stream, const struct graph_step *step);

/* An allocation of a graph is freed, in stream order or at once. `epoch` is the pool's epoch at its launch. */
void graph_pool_freed_behind(struct graph_pool *pool, struct graph_stream stream, uint64_t bytes, uint32_t epoch);
void graph_pool_freed(struct graph_pool *pool, uint64_t bytes, uint32_t epoch);
uint32_t graph_pool_epoch(const struct graph_pool *pool);

/* True if any graph of this process has allocated memory. */
bool graph_pools_exist(void);

/* One stream, or all streams of a context, have finished all their work. True if that work included graphs. */
bool graph_pools_synchronised(struct graph_stream stream);
bool graph_pools_synchronised_context(uint64_t context);

/* Call before a stream is destroyed: its handle may be reused while its work still runs. */
void graph_pools_stream_ends(CUstream stream);

/* Call hold and release around calls that may end contexts: in between no stream is queried. graph_pools_context_gone()
 * reports that a context and its streams have ended. */
void graph_pools_hold(void);
void graph_pools_release(void);
void graph_pools_context_gone(uint64_t context);

/* Query the driver for streams that have finished; false if some have not. */
bool graph_pool_ask(struct graph_pool *pool);

/* Charge what the pool needs now, even past the limit: one pool, or all of them. */
void graph_pool_settle(struct graph_pool *pool);
void graph_pools_settle(void);

/* Contexts of this card have ended, and possibly all memory of its pools. */
void graph_pools_context_ended(int card);

/* Bytes that the card's pools are charged for. */
uint64_t graph_pools_charged(int card);

/* Have the driver release what the card's pools keep unused. */
void graph_pools_trim(int card);

#endif
