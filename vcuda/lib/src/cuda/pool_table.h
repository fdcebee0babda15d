/* The stream-ordered pools that are known, each with its account, and questions to the driver about one of them, which
 * another thread may destroy meanwhile. Accounts are never freed, only used again: threads may be looking at them. */
#ifndef VCUDA_POOL_TABLE_H
#define VCUDA_POOL_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "cu_types.h"

enum pool_state { POOL_FREE, POOL_STREAM_ORDERED, POOL_CLOSED };

struct pool_account {
    struct pool_account *next;
    uint8_t state;
    bool busy;
    int card;
    CUmemoryPool pool;
    uint64_t charged;          /* of this pool, in the container's account */
    uint64_t on_way, promised; /* sums over growths: reserved, and what they may take of the pool's room */
    uint64_t held;             /* and what they may take beyond both */
    uint32_t growing;          /* growths on their way */
    uint32_t changes;          /* growths that ended, and readings that changed the charge */
    uint32_t allocations;
    uint32_t asking;          /* calls of the driver on their way that name the pool: it is not destroyed meanwhile */
    uint64_t used, threshold; /* bytes of its allocations, and what it keeps beyond them at a synchronisation */
    bool is_owed;             /* something was freed that a synchronisation gives back */
};

/* Words that are changed with the bit taken, and also read without it. */
static inline uint64_t pool_seen(const uint64_t *word) {
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static inline void pool_set(uint64_t *word, uint64_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

static inline enum pool_state pool_state_of(const struct pool_account *account) {
    return (enum pool_state)__atomic_load_n(&account->state, __ATOMIC_ACQUIRE);
}

/* All accounts: the first, and `next` of each. Those that are free are among them. */
struct pool_account *pool_table_first(void);

/* The account of a pool that has one. */
struct pool_account *pool_table_find(CUmemoryPool pool);

/* The same, or a new one; NULL if there is no memory for one. */
struct pool_account *pool_table_of(CUmemoryPool pool, int card, bool *is_new);

/* Before a call of the driver that names the pool: false if it is destroyed already. Otherwise pool_asked() ends it. */
bool pool_ask(struct pool_account *account);
void pool_asked(struct pool_account *account);

/* Before a pool is destroyed, which nobody asks about any more: until those that asked have their answer. */
void pool_wait_until_asked(const struct pool_account *account);

/* An attribute of the pool; false if it is destroyed, or the driver does not tell. */
bool pool_read(struct pool_account *account, int attribute, uint64_t *bytes);

#endif
