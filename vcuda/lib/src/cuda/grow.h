/* Memory that the driver keeps in pools: stream-ordered pools, and each device's pool for graphs. What is charged is
 * what a pool has reserved, freed memory that it keeps included, because no other container can have that. */
#ifndef VCUDA_GROW_H
#define VCUDA_GROW_H

#include <stdbool.h>
#include <stdint.h>

#include "cu_types.h"
#include "cuda/held.h"

struct grow;

/* The account of a pool: a new one if this is the first time it is seen; NULL if there is no memory for one. */
struct grow *grow_of_pool(CUmemoryPool pool, int card);
struct grow *grow_of_graphs(CUdevice device, int card);

/* The account of a pool that has one. */
struct grow *grow_find(CUmemoryPool pool);

/* Room for an allocation that is on its way. */
struct growth {
    struct grow *grow;
    uint64_t reserved; /* charged, on top of what the pool has */
    uint64_t promised; /* of what the pool has reserved already */
};

/* Before the driver is asked for `bytes` of the pool: CUDA_SUCCESS or CUDA_ERROR_OUT_OF_MEMORY. */
CUresult grow_begin(struct growth *growth, struct grow *grow, uint64_t bytes);

/* After it has answered: charge what the pool has now. False if the pool took more than was reserved and the limit
 * forbids it: then the caller gives its allocation back and calls grow_undone, or keeps it and calls grow_taken. */
bool grow_end(struct growth *growth);
void grow_undone(struct growth *growth);
void grow_taken(struct growth *growth);

/* Charge what the pool has now, whatever the limit. */
void grow_settle(struct grow *grow);

/* An allocation of a pool, and its end. */
void grow_allocated(struct grow *grow, CUdeviceptr at);
void grow_freed(const struct held *item);

/* The pool is about to be destroyed; and whether it was. What it holds stays charged until its last allocation is
 * freed. In between its handle is nobody's: the driver may give it to another pool. */
void grow_closing(struct grow *grow);
void grow_closed(struct grow *grow, bool closed);

/* Something was freed that pools give back at the next synchronisation. */
void grow_touched(void);

/* The program has synchronised, or asks how much there is: settle what was touched. */
void grow_synchronised(void);

/* Contexts of this card ended, and pools with them. */
void grow_settle_card(int card);

/* Have the driver give back what the pool keeps without using it. */
void grow_trim(struct grow *grow);

/* The same for every pool of this process on the card. */
void grow_relieve(int card);

#endif
