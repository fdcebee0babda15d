#include "cuda/pool_table.h"

#include <sched.h>
#include <stdlib.h>

#include "interposer.h"
#include "lock.h"
#include "page.h"

#define PATIENCE_NS 1000000000u

static struct pool_account *all;
static bool adding; /* a bit as in each account: a pool must not get two */

struct pool_account *pool_table_first(void) {
    return __atomic_load_n(&all, __ATOMIC_ACQUIRE);
}

struct pool_account *pool_table_find(CUmemoryPool pool) {
    for (struct pool_account *account = pool_table_first(); account; account = account->next)
        if (pool_state_of(account) == POOL_STREAM_ORDERED && account->pool == pool)
            return account;
    return NULL;
}

/* With `adding` taken. A `spare` that is not needed stays the caller's. */
static struct pool_account *add(CUmemoryPool pool, int card, struct pool_account **spare) {
    struct pool_account *account = pool_table_first();
    while (account && pool_state_of(account) != POOL_FREE)
        account = account->next;
    bool fresh = !account;
    if (fresh) {
        account = *spare;
        *spare = NULL;
    }
    if (!account)
        return NULL;
    account->pool = pool;
    account->card = card;
    account->on_way = account->promised = account->held = 0;
    pool_set(&account->charged, 0);
    account->growing = account->allocations = 0;
    pool_set(&account->used, 0);
    pool_set(&account->threshold, 0);
    account->is_owed = false;
    __atomic_store_n(&account->state, POOL_STREAM_ORDERED, __ATOMIC_RELEASE);
    if (fresh) {
        account->next = pool_table_first();
        __atomic_store_n(&all, account, __ATOMIC_RELEASE);
    }
    return account;
}

struct pool_account *pool_table_of(CUmemoryPool pool, int card, bool *is_new) {
    struct pool_account *account = pool_table_find(pool);
    *is_new = false;
    if (account)
        return account;
    struct pool_account *spare = calloc(1, sizeof *spare);
    spin_lock(&adding);
    account = pool_table_find(pool);
    *is_new = !account;
    if (!account)
        account = add(pool, card, &spare);
    spin_unlock(&adding);
    free(spare);
    return account;
}

/* The program may destroy the pool in another thread: what names it to the driver is announced, and who destroys waits.
 */
bool pool_ask(struct pool_account *account) {
    __atomic_fetch_add(&account->asking, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&account->state, __ATOMIC_SEQ_CST) == POOL_STREAM_ORDERED)
        return true;
    __atomic_fetch_sub(&account->asking, 1, __ATOMIC_RELEASE);
    return false;
}

void pool_asked(struct pool_account *account) {
    __atomic_fetch_sub(&account->asking, 1, __ATOMIC_RELEASE);
}

/* A child of fork may find a thread counted that it does not have: hence no longer than this. */
void pool_wait_until_asked(const struct pool_account *account) {
    uint64_t began = vcuda_now_ns();
    while (__atomic_load_n(&account->asking, __ATOMIC_SEQ_CST) && vcuda_now_ns() - began < PATIENCE_NS)
        sched_yield();
}

bool pool_read(struct pool_account *account, int attribute, uint64_t *bytes) {
    *bytes = 0;
    if (!pool_ask(account))
        return false;
    CUresult result = real.cuMemPoolGetAttribute(account->pool, attribute, bytes);
    pool_asked(account);
    return result == CUDA_SUCCESS;
}
