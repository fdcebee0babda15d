/* Accounts of stream-ordered memory pools. A pool is charged for what it has reserved, including freed memory that it
 * keeps, because no other container can use that. The pools for graphs are in graph_pool.h. Any thread may call. */
#ifndef VCUDA_POOL_ACCOUNT_H
#define VCUDA_POOL_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "cu_types.h"
#include "cuda/allocation_table.h"

struct pool_account;

/* The account of a pool, created at its first use; NULL if out of memory. */
struct pool_account *pool_account_of(CUmemoryPool pool, int card);

/* The account of a pool, or NULL if it has none. */
struct pool_account *pool_account_find(CUmemoryPool pool);

/* Room for an allocation between pool_account_begin() and pool_account_end(). */
struct pool_growth {
    struct pool_account *account;
    uint64_t reserved; /* newly charged for it */
    uint64_t promised; /* room in what the pool has already reserved */
    uint64_t taken;    /* room in the pool that the new allocation took */
    uint64_t held;     /* by how much more the pool may grow at worst; its charge keeps this much meanwhile */
};

/* Before the driver allocates `bytes` from the pool. CUDA_SUCCESS or CUDA_ERROR_OUT_OF_MEMORY. */
CUresult pool_account_begin(struct pool_growth *growth, struct pool_account *account, uint64_t bytes);

/* After the driver call: charge what the pool has reserved now, including a new allocation of `bytes` (0: there is
 * none). False if the pool took more than was reserved and the limit forbids the difference. The caller then frees its
 * allocation and calls pool_account_undone(), or keeps it and calls pool_account_taken(). */
bool pool_account_end(struct pool_growth *growth, uint64_t bytes);
void pool_account_undone(struct pool_growth *growth);
void pool_account_taken(struct pool_growth *growth);

/* Set how much unused memory the pool keeps at a synchronisation. */
void pool_account_set_threshold(struct pool_account *account, uint64_t bytes);

/* Charge what the pool has reserved now, even past the limit. */
void pool_account_settle(struct pool_account *account);

/* Record an allocation from a pool; true if *replaced had its pointer and its end was not observed.
 * pool_account_freed() ends it. */
bool pool_account_allocated(struct pool_account *account, CUdeviceptr at, uint64_t bytes, struct allocation *replaced);
void pool_account_freed(const struct allocation *item);

/* Call before a pool is destroyed, and after it with the result. Its memory stays charged until its last allocation is
 * freed. In between its handle identifies no account: the driver may reuse it for another pool. */
void pool_account_closing(struct pool_account *account);
void pool_account_closed(struct pool_account *account, bool closed);

/* Something was freed that pools release at the next synchronisation. */
void pool_account_touched(void);

/* The program has synchronised, or queries free memory: settle the pools with freed memory. */
void pool_account_synchronised(void);

/* Contexts of this card have ended, and their pools with them. */
void pool_account_context_ended(int card);

/* Have the driver release what the pool keeps unused. */
void pool_account_trim(struct pool_account *account);

/* Trim every pool of this process on the card, including those for graphs. */
void pool_account_relieve(int card);

/* Reserve memory of the card; a refusal is counted for the host. */
CUresult pool_account_charge(int card, uint64_t bytes);

/* Like pool_account_charge(), but before refusing it trims the pools of this process. */
CUresult pool_account_reserve(int card, uint64_t bytes);

#endif
