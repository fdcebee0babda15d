/* How a pool's charge follows what the pool has reserved, with any number of threads allocating from it.
 *
 *   what it has reserved, as read  <=  charge of a pool  <=  the same + what allocations on their way may add
 *
 * A pool grows in steps, by up to a step more than it is asked for. Where the limit has room for that, it is reserved;
 * where not, what the pool has may suffice, or less than a whole step: then a charge that is there does not fall
 * meanwhile, in case another thread's synchronisation takes from the pool what was counted on.
 *
 * A reading may hold the growth of an allocation that is on its way, or not yet: between the two bounds the charge is
 * left alone, and once nothing is on its way they meet. A reading may also be old when it is used: an allocation that
 * ended in between has already taken its reservation off, or a later reading has been used already. So these are
 * counted, and a reading is used only if none happened since; whoever comes last reads last.
 * Which pools there are, and how the driver is asked about one, is pool_table.h's.
 */
#include "cuda/pool_account.h"

#include "cuda/account.h"
#include "cuda/device_map.h"
#include "cuda/exported.h"
#include "cuda/graph_pool.h"
#include "cuda/pool_table.h"
#include "interposer.h"
#include "lock.h"
#include "note.h"
#include "page.h"

#define UNIT 512                 /* in which pools divide what they have */
#define MOST_KEPT (15 * GRANULE) /* of its last step a pool keeps so much with what is in use */

static uint64_t frees, settled_frees; /* of what pools hold; and how many of them have been settled */
/* How much more than asked for a pool takes at once: it grows in steps, of 32 MiB on an H100 with driver 580, or of as
 * much as was seen here. */
static uint64_t surplus = MOST_KEPT;

static uint64_t units(uint64_t bytes) {
    return (bytes + UNIT - 1) / UNIT * UNIT;
}

struct pool_account *pool_account_find(CUmemoryPool pool) {
    return pool_table_find(pool);
}

void pool_account_set_threshold(struct pool_account *account, uint64_t bytes) {
    pool_set(&account->threshold, bytes);
}

struct pool_account *pool_account_of(CUmemoryPool pool, int card) {
    uint64_t threshold;
    bool is_new;
    struct pool_account *account = pool_table_of(pool, card, &is_new);
    if (is_new && account && pool_read(account, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold))
        pool_account_set_threshold(account, threshold);
    return account;
}

/* `alone`: no other allocation was on its way, whose growth this might be. */
static void learn_surplus(uint64_t more, bool alone) {
    uint64_t known = __atomic_load_n(&surplus, __ATOMIC_RELAXED);
    if (alone && more > known && more <= 64 * GRANULE)
        __atomic_store_n(&surplus, more, __ATOMIC_RELAXED);
}

/* What the pool has reserved. Where the driver does not tell, what its allocations take, in steps: what it keeps beyond
 * them is not known then. False if the pool is destroyed. */
static bool reserved_by(struct pool_account *account, uint64_t *reserved) {
    if (pool_read(account, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, reserved))
        return true;
    uint64_t step = __atomic_load_n(&surplus, __ATOMIC_RELAXED) + GRANULE;
    *reserved = (pool_seen(&account->used) + step - 1) / step * step;
    return pool_state_of(account) == POOL_STREAM_ORDERED;
}

/* Charge what the pool has now; false if it is more than was charged and `within_limit` forbids that. What an
 * allocation on its way took beyond its reservation is for its own thread to answer for. */
static bool settle(struct pool_account *account, bool within_limit) {
    for (;;) {
        uint64_t reserved;
        uint32_t changes = __atomic_load_n(&account->changes, __ATOMIC_ACQUIRE);
        if (!reserved_by(account, &reserved))
            return true;
        spin_lock(&account->busy);
        if (account->changes != changes) {
            spin_unlock(&account->busy);
            continue;
        }
        uint64_t before = account->charged, target = granules(reserved), more = account->on_way + account->held;
        bool alone = account->growing <= 1;
        if (before > target)
            target = before < target + more ? before : target + more;
        else if (account->growing && !within_limit)
            target = before;
        __atomic_fetch_add(&account->changes, target != before, __ATOMIC_RELEASE);
        pool_set(&account->charged, target);
        spin_unlock(&account->busy);
        if (target <= before) {
            account_return(account->card, before - target);
            return true;
        }
        learn_surplus(target - before, alone);
        if (!within_limit) {
            account_taken(account->card, target - before);
            return true;
        }
        if (pool_account_reserve(account->card, target - before) == CUDA_SUCCESS)
            return true;
        spin_lock(&account->busy);
        pool_set(&account->charged,
                 account->charged - (target - before)); /* not charged yet: the next one to settle will */
        spin_unlock(&account->busy);
        return false;
    }
}

void pool_account_settle(struct pool_account *account) {
    settle(account, false);
}

/* By how much will the pool grow, if nothing is trimmed meanwhile: 0 if it has room that nobody else was promised, and
 * at most `most`. From here on its charge does not fall by what that may be wrong. */
static uint64_t growth_of(struct pool_growth *growth, uint64_t bytes, uint64_t most) {
    struct pool_account *account = growth->account;
    uint64_t reserved, used, step = __atomic_load_n(&surplus, __ATOMIC_RELAXED) + GRANULE, grows = most;
    uint32_t changes = __atomic_load_n(&account->changes, __ATOMIC_ACQUIRE);
    bool known = pool_read(account, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved) &&
                 pool_read(account, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) && used <= reserved;
    spin_lock(&account->busy);
    if (known && account->changes == changes) {
        uint64_t wanted = used + account->promised + bytes;
        grows = wanted <= reserved ? 0 : (wanted + step - 1) / step * step - reserved;
        grows = grows < most ? grows : most;
    }
    growth->promised = bytes;
    growth->held = most - grows;
    account->promised += growth->promised;
    account->held += growth->held;
    account->growing++;
    spin_unlock(&account->busy);
    return grows;
}

static void withdraw(struct pool_growth *growth) {
    struct pool_account *account = growth->account;
    spin_lock(&account->busy);
    account->promised -= growth->promised;
    account->held -= growth->held;
    account->growing--;
    spin_unlock(&account->busy);
    pool_account_settle(account);
}

CUresult pool_account_begin(struct pool_growth *growth, struct pool_account *account, uint64_t bytes) {
    *growth = (struct pool_growth){.account = account};
    if (!account || account->card == CARD_NONE)
        return CUDA_SUCCESS;
    uint64_t whole = granules(bytes), more = __atomic_load_n(&surplus, __ATOMIC_RELAXED);
    if (bytes && whole < UINT64_MAX - more)
        whole += more;
    bool is_near = !account_fits(account->card, whole) && whole < UINT64_MAX;
    if (is_near && !(whole = growth_of(growth, units(bytes), whole)))
        return CUDA_SUCCESS;
    CUresult result = pool_account_reserve(account->card, whole);
    if (result != CUDA_SUCCESS && is_near)
        withdraw(growth);
    if (result != CUDA_SUCCESS)
        return result;
    growth->reserved = whole;
    spin_lock(&account->busy);
    account->on_way += whole;
    pool_set(&account->charged, account->charged + whole);
    if (!is_near) {
        growth->promised = bytes;
        account->promised += bytes;
        account->growing++;
    }
    spin_unlock(&account->busy);
    return CUDA_SUCCESS;
}

bool pool_account_end(struct pool_growth *growth, uint64_t bytes) {
    struct pool_account *account = growth->account;
    growth->taken = units(bytes);
    if (account)
        __atomic_fetch_add(&account->used, growth->taken, __ATOMIC_RELAXED);
    if (!account || account->card == CARD_NONE)
        return true;
    spin_lock(&account->busy);
    account->on_way -= growth->reserved;
    account->held -= growth->held;
    account->promised -= growth->promised;
    __atomic_fetch_add(&account->changes, 1, __ATOMIC_RELEASE);
    spin_unlock(&account->busy);
    bool fits = settle(account, true);
    spin_lock(&account->busy);
    account->growing -= fits;
    spin_unlock(&account->busy);
    return fits;
}

void pool_account_undone(struct pool_growth *growth) {
    __atomic_fetch_sub(&growth->account->used, growth->taken, __ATOMIC_RELAXED);
    pool_account_trim(growth->account);
    pool_account_taken(growth);
}

void pool_account_taken(struct pool_growth *growth) {
    spin_lock(&growth->account->busy);
    growth->account->growing--;
    spin_unlock(&growth->account->busy);
    pool_account_settle(growth->account);
}

bool pool_account_allocated(struct pool_account *account, CUdeviceptr at, uint64_t bytes, struct allocation *replaced) {
    if (!account || !at)
        return false;
    bytes = units(bytes);
    __atomic_fetch_add(&account->allocations, 1, __ATOMIC_RELAXED);
    struct allocation item = {
        .key = at, .bytes = bytes, .owner = (uint64_t)(uintptr_t)account, .card = CARD_NONE, .kind = ALLOCATION_ASYNC};
    return allocation_put(&item, replaced) == ALLOCATION_REPLACED;
}

/* A reading on its way is void from here on, for this pool and for the next one that the account is used for. */
static void end(struct pool_account *account) {
    spin_lock(&account->busy);
    bool ends = pool_state_of(account) == POOL_CLOSED;
    uint64_t charged = ends ? account->charged : 0;
    int card = account->card;
    if (ends) {
        pool_set(&account->charged, 0);
        __atomic_fetch_add(&account->changes, 1, __ATOMIC_RELEASE);
        __atomic_store_n(&account->state, POOL_FREE, __ATOMIC_RELEASE);
    }
    spin_unlock(&account->busy);
    account_return(card, charged);
}

void pool_account_freed(const struct allocation *item) {
    struct pool_account *account = (struct pool_account *)(uintptr_t)item->owner;
    __atomic_fetch_sub(&account->used, item->bytes, __ATOMIC_RELAXED);
    __atomic_store_n(&account->is_owed, true, __ATOMIC_RELEASE);
    uint32_t left = __atomic_sub_fetch(&account->allocations, 1, __ATOMIC_ACQ_REL);
    if (pool_state_of(account) == POOL_CLOSED && !left)
        end(account);
    __atomic_fetch_add(&frees, 1, __ATOMIC_SEQ_CST);
}

/* As if it had one more allocation, so that it does not end before the driver has answered. */
void pool_account_closing(struct pool_account *account) {
    pool_account_settle(account);
    __atomic_fetch_add(&account->allocations, 1, __ATOMIC_ACQ_REL);
    __atomic_store_n(&account->state, POOL_CLOSED, __ATOMIC_SEQ_CST);
    pool_wait_until_asked(account);
}

void pool_account_closed(struct pool_account *account, bool closed) {
    if (!closed)
        __atomic_store_n(&account->state, POOL_STREAM_ORDERED, __ATOMIC_RELEASE);
    if (!__atomic_sub_fetch(&account->allocations, 1, __ATOMIC_ACQ_REL) && closed)
        end(account);
}

void pool_account_touched(void) {
    for (struct pool_account *account = pool_table_first(); account; account = account->next)
        __atomic_store_n(&account->is_owed, true, __ATOMIC_RELEASE);
    __atomic_fetch_add(&frees, 1, __ATOMIC_SEQ_CST);
}

/* Does it keep more than it will when the driver has given back what it owes? Another thread's synchronisation may have
 * been too early for what this one freed. A pool that grows in large steps keeps some of the last one. */
static bool still_owes(const struct pool_account *account) {
    uint64_t used = pool_seen(&account->used), threshold = pool_seen(&account->threshold);
    uint64_t kept = granules(used > threshold ? used : threshold), charged = pool_seen(&account->charged);
    return charged > kept && (!kept || charged - kept > MOST_KEPT);
}

void pool_account_synchronised(void) {
    uint64_t now = __atomic_load_n(&frees, __ATOMIC_SEQ_CST);
    if (now == __atomic_load_n(&settled_frees, __ATOMIC_SEQ_CST))
        return;
    bool owed = false;
    for (struct pool_account *account = pool_table_first(); account; account = account->next) {
        if (!pool_seen(&account->charged) || !__atomic_exchange_n(&account->is_owed, false, __ATOMIC_ACQ_REL))
            continue;
        pool_account_settle(account);
        if (still_owes(account)) {
            __atomic_store_n(&account->is_owed, true, __ATOMIC_RELEASE);
            owed = true;
        }
    }
    graph_pools_settle();
    if (!owed)
        __atomic_store_n(&settled_frees, now, __ATOMIC_SEQ_CST);
}

void pool_account_context_ended(int card) {
    for (struct pool_account *account = pool_table_first(); account; account = account->next)
        if (account->card == card)
            pool_account_settle(account);
    graph_pools_context_ended(card);
}

void pool_account_trim(struct pool_account *account) {
    if (pool_ask(account)) {
        real.cuMemPoolTrimTo(account->pool, 0);
        pool_asked(account);
    }
    pool_account_settle(account);
}

void pool_account_relieve(int card) {
    exported_settle();
    for (struct pool_account *account = pool_table_first(); account; account = account->next)
        if (account->card == card && pool_seen(&account->charged))
            pool_account_trim(account);
    graph_pools_trim(card);
}

static void tell_refusal(int card, uint64_t bytes) {
    const struct vcuda_card_limits *limits = account_limits(card);
    uint64_t pooled = graph_pools_charged(card);
    for (const struct pool_account *account = pool_table_first(); account; account = account->next)
        if (account->card == card && pool_state_of(account) != POOL_FREE)
            pooled += pool_seen(&account->charged);
    if (limits)
        note_send(vcuda_usage(), &(struct vcuda_note){.code = VCUDA_NOTE_MEMORY_REFUSED,
                                                      .card = (uint32_t)card,
                                                      .bytes = bytes,
                                                      .used = account_used(card, limits),
                                                      .limit = limits->memory_limit,
                                                      .pooled = pooled});
}

CUresult pool_account_charge(int card, uint64_t bytes) {
    CUresult result = account_reserve(card, bytes);
    if (result != CUDA_SUCCESS)
        tell_refusal(card, bytes);
    return result;
}

CUresult pool_account_reserve(int card, uint64_t bytes) {
    if (!account_makes_room(card, bytes))
        pool_account_relieve(card);
    return pool_account_charge(card, bytes);
}
