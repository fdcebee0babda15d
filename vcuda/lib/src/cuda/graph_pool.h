/* Each device's memory for graphs, charged for the greatest of two: what the driver has reserved for it, and what
 * launches that may not have ended can hold at once. */
#ifndef VCUDA_GRAPH_POOL_H
#define VCUDA_GRAPH_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "cu_types.h"
#include "cuda/graph_backlog.h"

struct graph_pool;

/* The pool of a device; NULL if its number is beyond all that a process can see. */
struct graph_pool *graph_pool_of(CUdevice device, int card);

CUdevice graph_pool_device(const struct graph_pool *pool);

/* Put a launch behind its stream's work if what is charged suffices; else false, and *missing bytes are to be reserved
 * and added first. */
bool graph_pool_enter(struct graph_pool *pool, struct graph_stream stream, const struct graph_step *step,
                      uint64_t *missing);
void graph_pool_add(struct graph_pool *pool, uint64_t bytes);

/* The driver refused the launch. */
void graph_pool_withdraw(struct graph_pool *pool, struct graph_stream stream, const struct graph_step *step);

/* An allocation of a graph is freed, in the order of a stream or at once. `epoch` is that of its launch. */
void graph_pool_freed_behind(struct graph_pool *pool, struct graph_stream stream, uint64_t bytes, uint32_t epoch);
void graph_pool_freed(struct graph_pool *pool, uint64_t bytes, uint32_t epoch);
uint32_t graph_pool_epoch(const struct graph_pool *pool);

/* Has any graph of this process taken memory? */
bool graph_pools_exist(void);

/* Streams have done all that they were given: one, or all of a context. True if graphs were among it. */
bool graph_pools_synchronised(struct graph_stream stream);
bool graph_pools_synchronised_context(uint64_t context);

/* The stream is about to be destroyed: its handle may soon be another's, while its work still runs. */
void graph_pools_stream_ends(CUstream stream);

/* Around calls that may end contexts: no stream is asked about in between. And a context has ended, its streams with
 * it. */
void graph_pools_hold(void);
void graph_pools_release(void);
void graph_pools_context_gone(uint64_t context);

/* Ask the driver which streams have done their work; false if some have not. */
bool graph_pool_ask(struct graph_pool *pool);

/* Charge what the pool needs now, whatever the limit: every pool, or a card's. */
void graph_pool_settle(struct graph_pool *pool);
void graph_pools_settle(void);

/* Contexts of this card ended, and perhaps all that its pools had. */
void graph_pools_context_ended(int card);

/* Bytes that the card's pools are charged for. */
uint64_t graph_pools_charged(int card);

/* Have the driver give back what the card's pools keep without using it. */
void graph_pools_trim(int card);

#endif
