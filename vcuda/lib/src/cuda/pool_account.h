/* Stream-ordered pools. What is charged is what a pool has reserved, freed memory that it keeps included, because no
 * other container can have that. Each device's pool for graphs is graph_pool.h's. */
#ifndef VCUDA_POOL_ACCOUNT_H
#define VCUDA_POOL_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "cu_types.h"
#include "cuda/allocation_table.h"

struct pool_account;

/* The account of a pool: a new one if this is the first time it is seen; NULL if there is no memory for one. */
struct pool_account *pool_account_of(CUmemoryPool pool, int card);

/* The account of a pool that has one. */
struct pool_account *pool_account_find(CUmemoryPool pool);

/* Room for an allocation that is on its way. */
struct pool_growth {
    struct pool_account *account;
    uint64_t reserved; /* charged, on top of what the pool has */
    uint64_t promised; /* of what the pool has reserved already */
    uint64_t taken;    /* by the new allocation, of what the pool has */
    uint64_t held;     /* by how much more it may grow at worst: so much of its charge stays meanwhile */
};

/* Before the driver is asked for `bytes` of the pool: CUDA_SUCCESS or CUDA_ERROR_OUT_OF_MEMORY. */
CUresult pool_account_begin(struct pool_growth *growth, struct pool_account *account, uint64_t bytes);

/* After it has answered: charge what the pool has now, `bytes` of a new allocation among it (0: there is none). False
 * if the pool took more than was reserved and the limit forbids it: then the caller gives its allocation back and calls
 * pool_account_undone, or keeps it and calls pool_account_taken. */
bool pool_account_end(struct pool_growth *growth, uint64_t bytes);
void pool_account_undone(struct pool_growth *growth);
void pool_account_taken(struct pool_growth *growth);

/* How much the pool keeps at a synchronisation without using it. */
void pool_account_set_threshold(struct pool_account *account, uint64_t bytes);

/* Charge what the pool has now, whatever the limit. */
void pool_account_settle(struct pool_account *account);

/* An allocation of a pool: true if *replaced had its pointer, whose end nobody told us. And its end. */
bool pool_account_allocated(struct pool_account *account, CUdeviceptr at, uint64_t bytes, struct allocation *replaced);
void pool_account_freed(const struct allocation *item);

/* The pool is about to be destroyed; and whether it was. What it holds stays charged until its last allocation is
 * freed. In between its handle is nobody's: the driver may give it to another pool. */
void pool_account_closing(struct pool_account *account);
void pool_account_closed(struct pool_account *account, bool closed);

/* Something was freed that pools give back at the next synchronisation. */
void pool_account_touched(void);

/* The program has synchronised, or asks how much there is: settle what was touched. */
void pool_account_synchronised(void);

/* Contexts of this card ended, and pools with them. */
void pool_account_context_ended(int card);

/* Have the driver give back what the pool keeps without using it. */
void pool_account_trim(struct pool_account *account);

/* The same for every pool of this process on the card, those of graphs included. */
void pool_account_relieve(int card);

/* Reserve memory of the card, and tell the host of a refusal. */
CUresult pool_account_charge(int card, uint64_t bytes);

/* The same: what pools of this process keep without using it is given back before it is refused. */
CUresult pool_account_reserve(int card, uint64_t bytes);

#endif
