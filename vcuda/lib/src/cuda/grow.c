/* How a pool's charge follows what the pool has reserved, with any number of threads allocating from it.
 *
 *   what it has reserved, as read  <=  charge of a pool  <=  the same + reservations on their way
 *
 * A reading may hold the growth of an allocation that is on its way, or not yet: between the two bounds the charge is
 * left alone, and once nothing is on its way they meet. A reading may also be old when it is used: an allocation that
 * ended in between has already taken its reservation off, or a later reading has been used already. So these are
 * counted, and a reading is used only if none happened since; whoever comes last reads last.
 * Accounts are never freed, only used again: threads may be looking at them.
 */
#include "cuda/grow.h"

#include <sched.h>
#include <stdlib.h>

#include "cuda/account.h"
#include "cuda/mem.h"
#include "front.h"

enum state { FREE, STREAM_ORDERED, GRAPHS, CLOSED };

struct grow {
    struct grow *next;
    uint8_t state;
    bool busy;
    int card;
    CUmemoryPool pool;
    CUdevice device;
    uint64_t charged;          /* of this pool, in the container's account */
    uint64_t on_way, promised; /* sums over growths: reserved, and what they may take of the pool's room */
    uint32_t growing;          /* growths on their way */
    uint32_t changes;          /* growths that ended, and readings that changed the charge */
    uint32_t allocations;
};

static struct grow *all;
static bool adding;                   /* a bit as in each account: a pool must not get two */
static uint64_t frees, settled_frees; /* of what pools hold; and how many of them have been settled */
/* How much more than asked for a pool has taken at once: pools of some drivers grow in large steps. */
static uint64_t surplus;

static void take(bool *bit) {
    for (unsigned tries = 0; __atomic_exchange_n(bit, true, __ATOMIC_ACQUIRE);)
        if (++tries % 64 == 0)
            sched_yield();
}

static void lock(struct grow *grow) {
    take(&grow->busy);
}

static void unlock(struct grow *grow) {
    __atomic_store_n(&grow->busy, false, __ATOMIC_RELEASE);
}

/* Words that are changed with the bit taken, and also read without it. */
static uint64_t seen(const uint64_t *word) {
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static void set(uint64_t *word, uint64_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

static enum state state_of(const struct grow *grow) {
    return (enum state)__atomic_load_n(&grow->state, __ATOMIC_ACQUIRE);
}

static struct grow *first(void) {
    return __atomic_load_n(&all, __ATOMIC_ACQUIRE);
}

static struct grow *find(enum state state, CUmemoryPool pool, CUdevice device) {
    for (struct grow *grow = first(); grow; grow = grow->next)
        if (state_of(grow) == state && grow->pool == pool && grow->device == device)
            return grow;
    return NULL;
}

/* With `adding` taken. A `spare` that is not needed stays the caller's. */
static struct grow *add(enum state state, CUmemoryPool pool, CUdevice device, int card, struct grow **spare) {
    struct grow *grow = first();
    while (grow && state_of(grow) != FREE)
        grow = grow->next;
    bool fresh = !grow;
    if (fresh) {
        grow = *spare;
        *spare = NULL;
    }
    if (!grow)
        return NULL;
    grow->pool = pool;
    grow->device = device;
    grow->card = card;
    grow->on_way = grow->promised = 0;
    set(&grow->charged, 0);
    grow->growing = grow->allocations = 0;
    __atomic_store_n(&grow->state, (uint8_t)state, __ATOMIC_RELEASE);
    if (fresh) {
        grow->next = first();
        __atomic_store_n(&all, grow, __ATOMIC_RELEASE);
    }
    return grow;
}

static struct grow *find_or_add(enum state state, CUmemoryPool pool, CUdevice device, int card) {
    struct grow *grow = find(state, pool, device);
    if (grow)
        return grow;
    struct grow *spare = calloc(1, sizeof *spare);
    take(&adding);
    grow = find(state, pool, device);
    if (!grow)
        grow = add(state, pool, device, card, &spare);
    __atomic_store_n(&adding, false, __ATOMIC_RELEASE);
    free(spare);
    return grow;
}

struct grow *grow_of_pool(CUmemoryPool pool, int card) {
    return find_or_add(STREAM_ORDERED, pool, 0, card);
}

struct grow *grow_of_graphs(CUdevice device, int card) {
    return find_or_add(GRAPHS, NULL, device, card);
}

struct grow *grow_find(CUmemoryPool pool) {
    return find(STREAM_ORDERED, pool, 0);
}

static bool read_now(const struct grow *grow, uint64_t *reserved, uint64_t *used) {
    CUresult (*pool)(CUmemoryPool, int, void *) = real.cuMemPoolGetAttribute;
    CUresult (*graphs)(CUdevice, int, void *) = real.cuDeviceGetGraphMemAttribute;
    *reserved = *used = 0;
    if (state_of(grow) == GRAPHS)
        return graphs(grow->device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, reserved) == CUDA_SUCCESS &&
               graphs(grow->device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, used) == CUDA_SUCCESS;
    return state_of(grow) == STREAM_ORDERED &&
           pool(grow->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, reserved) == CUDA_SUCCESS &&
           pool(grow->pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, used) == CUDA_SUCCESS;
}

static void learn_surplus(uint64_t more) {
    uint64_t known = __atomic_load_n(&surplus, __ATOMIC_RELAXED);
    if (more > known && more <= 64 * GRANULE)
        __atomic_store_n(&surplus, more, __ATOMIC_RELAXED);
}

/* Charge what the pool has now; false if it is more than was charged and `within_limit` forbids that. What an
 * allocation on its way took beyond its reservation is for its own thread to answer for. */
static bool settle(struct grow *grow, bool within_limit) {
    for (;;) {
        uint64_t reserved, used;
        uint32_t changes = __atomic_load_n(&grow->changes, __ATOMIC_ACQUIRE);
        if (!read_now(grow, &reserved, &used))
            return true;
        lock(grow);
        if (grow->changes != changes) {
            unlock(grow);
            continue;
        }
        uint64_t before = grow->charged, target = granules(reserved);
        if (before > target)
            target = before < target + grow->on_way ? before : target + grow->on_way;
        else if (grow->growing && !within_limit)
            target = before;
        __atomic_fetch_add(&grow->changes, target != before, __ATOMIC_RELEASE);
        set(&grow->charged, target);
        unlock(grow);
        if (target <= before) {
            account_return(grow->card, before - target);
            return true;
        }
        learn_surplus(target - before);
        if (!within_limit) {
            account_taken(grow->card, target - before);
            return true;
        }
        if (account_reserve(grow->card, target - before) == CUDA_SUCCESS)
            return true;
        lock(grow);
        set(&grow->charged, grow->charged - (target - before)); /* not charged yet: the next one to settle will */
        unlock(grow);
        return false;
    }
}

void grow_settle(struct grow *grow) {
    settle(grow, false);
}

/* Does the pool have room for it that nobody else was promised? Then it need not grow. */
static bool promise(struct grow *grow, uint64_t bytes) {
    uint64_t reserved, used;
    uint32_t changes = __atomic_load_n(&grow->changes, __ATOMIC_ACQUIRE);
    if (!read_now(grow, &reserved, &used) || used > reserved)
        return false;
    lock(grow);
    bool room =
        grow->changes == changes && reserved - used >= grow->promised && reserved - used - grow->promised >= bytes;
    if (room) {
        grow->promised += bytes;
        grow->growing++;
    }
    unlock(grow);
    return room;
}

CUresult grow_begin(struct growth *growth, struct grow *grow, uint64_t bytes) {
    *growth = (struct growth){.grow = grow};
    if (!grow || grow->card == CARD_NONE)
        return CUDA_SUCCESS;
    uint64_t whole = granules(bytes), more = __atomic_load_n(&surplus, __ATOMIC_RELAXED);
    if (bytes && whole < UINT64_MAX - more)
        whole += more;
    if (!account_fits(grow->card, whole) && whole < UINT64_MAX && promise(grow, (bytes + 511) / 512 * 512)) {
        growth->promised = (bytes + 511) / 512 * 512; /* the unit in which pools divide what they have */
        return CUDA_SUCCESS;
    }
    CUresult result = account_reserve(grow->card, whole);
    if (result != CUDA_SUCCESS)
        return result;
    growth->reserved = whole;
    growth->promised = bytes;
    lock(grow);
    grow->on_way += whole;
    set(&grow->charged, grow->charged + whole);
    grow->promised += bytes;
    grow->growing++;
    unlock(grow);
    return CUDA_SUCCESS;
}

bool grow_end(struct growth *growth) {
    struct grow *grow = growth->grow;
    if (!grow || grow->card == CARD_NONE)
        return true;
    lock(grow);
    grow->on_way -= growth->reserved;
    grow->promised -= growth->promised;
    __atomic_fetch_add(&grow->changes, 1, __ATOMIC_RELEASE);
    unlock(grow);
    bool fits = settle(grow, true);
    lock(grow);
    grow->growing -= fits;
    unlock(grow);
    return fits;
}

void grow_undone(struct growth *growth) {
    grow_trim(growth->grow);
    grow_taken(growth);
}

void grow_taken(struct growth *growth) {
    lock(growth->grow);
    growth->grow->growing--;
    unlock(growth->grow);
    grow_settle(growth->grow);
}

void grow_allocated(struct grow *grow, CUdeviceptr at) {
    if (!grow || !at)
        return;
    __atomic_fetch_add(&grow->allocations, 1, __ATOMIC_RELAXED);
    struct held old, item = {.key = at, .owner = (uint64_t)(uintptr_t)grow, .card = CARD_NONE, .kind = HELD_ASYNC};
    if (held_put(&item, &old) == HELD_REPLACED)
        mem_discharge(&old);
}

static void end(struct grow *grow) {
    uint8_t expected = CLOSED;
    uint64_t charged = seen(&grow->charged);
    if (__atomic_compare_exchange_n(&grow->state, &expected, FREE, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        account_return(grow->card, charged);
}

void grow_freed(const struct held *item) {
    struct grow *grow = (struct grow *)(uintptr_t)item->owner;
    uint32_t left = __atomic_sub_fetch(&grow->allocations, 1, __ATOMIC_ACQ_REL);
    if (state_of(grow) == CLOSED && !left)
        end(grow);
    __atomic_fetch_add(&frees, 1, __ATOMIC_SEQ_CST);
}

/* As if it had one more allocation, so that it does not end before the driver has answered. */
void grow_closing(struct grow *grow) {
    grow_settle(grow);
    __atomic_fetch_add(&grow->allocations, 1, __ATOMIC_ACQ_REL);
    __atomic_store_n(&grow->state, CLOSED, __ATOMIC_RELEASE);
}

void grow_closed(struct grow *grow, bool closed) {
    if (!closed)
        __atomic_store_n(&grow->state, STREAM_ORDERED, __ATOMIC_RELEASE);
    if (!__atomic_sub_fetch(&grow->allocations, 1, __ATOMIC_ACQ_REL) && closed)
        end(grow);
}

void grow_touched(void) {
    if (first())
        __atomic_fetch_add(&frees, 1, __ATOMIC_SEQ_CST);
}

/* Does it keep more than it will when the driver has given back what it owes? Another thread's synchronisation may have
 * been too early for what this one freed. */
static bool is_owed(const struct grow *grow) {
    uint64_t reserved, used, threshold = 0;
    if (state_of(grow) != STREAM_ORDERED || !read_now(grow, &reserved, &used))
        return false;
    real.cuMemPoolGetAttribute(grow->pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
    uint64_t kept = used > threshold ? used : threshold;
    return seen(&grow->charged) > granules(kept);
}

void grow_synchronised(void) {
    uint64_t now = __atomic_load_n(&frees, __ATOMIC_SEQ_CST);
    if (now == __atomic_load_n(&settled_frees, __ATOMIC_SEQ_CST))
        return;
    bool owed = false;
    for (struct grow *grow = first(); grow; grow = grow->next) {
        if (!seen(&grow->charged))
            continue;
        grow_settle(grow);
        owed |= is_owed(grow);
    }
    if (!owed)
        __atomic_store_n(&settled_frees, now, __ATOMIC_SEQ_CST);
}

void grow_settle_card(int card) {
    for (struct grow *grow = first(); grow; grow = grow->next)
        if (grow->card == card)
            grow_settle(grow);
}

void grow_trim(struct grow *grow) {
    if (state_of(grow) == GRAPHS)
        real.cuDeviceGraphMemTrim(grow->device);
    else if (state_of(grow) == STREAM_ORDERED)
        real.cuMemPoolTrimTo(grow->pool, 0);
    grow_settle(grow);
}

void grow_relieve(int card) {
    for (struct grow *grow = first(); grow; grow = grow->next)
        if (grow->card == card && seen(&grow->charged))
            grow_trim(grow);
}
