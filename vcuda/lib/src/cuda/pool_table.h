/* The table of known stream-ordered pools with their accounts, and driver queries about a pool that another thread may
 * be destroying. Accounts are never freed but reused, because other threads may be reading them. */
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
    uint64_t charged; /* charged for this pool in the container's account */
    uint64_t on_way,
        promised;  /* sums over growths in progress: reserved bytes, and bytes that they may take of the pool's room */
    uint64_t held; /* bytes that growths in progress may take beyond both */
    uint32_t growing; /* growths in progress */
    uint32_t changes; /* growths that ended, and queries that changed the charge */
    uint32_t allocations;
    uint32_t asking;          /* calls of the driver on their way that name the pool: it is not destroyed meanwhile */
    uint64_t used, threshold; /* driver calls in progress that name the pool; it is not destroyed meanwhile */
    bool is_owed;             /* something was freed that a synchronisation releases */
};

/* For words that are written under the lock bit and also read without it. */
static inline uint64_t pool_seen(const uint64_t *word) {
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static inline void pool_set(uint64_t *word, uint64_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

static inline enum pool_state pool_state_of(const struct pool_account *account) {
    return (enum pool_state)__atomic_load_n(&account->state, __ATOMIC_ACQUIRE);
}

/* The first account; `next` leads to all others. Includes free ones. */
struct pool_account *pool_table_first(void);

/* The account of a pool, or NULL if it has none. */
struct pool_account *pool_table_find(CUmemoryPool pool);

/* The account of a pool, created if it has none; NULL if out of memory. */
struct pool_account *pool_table_of(CUmemoryPool pool, int card, bool *is_new);

/* Call before a driver call that names the pool: false if the pool is destroyed already. Otherwise call pool_asked()
 * afterwards. */
bool pool_ask(struct pool_account *account);
void pool_asked(struct pool_account *account);

/* Call before a pool is destroyed, once no new query can begin: waits until the queries in progress have ended. */
void pool_wait_until_asked(const struct pool_account *account);

/* Read an attribute of the pool; false if it is destroyed, or if the driver call fails. */
bool pool_read(struct pool_account *account, int attribute, uint64_t *bytes);

#endif
