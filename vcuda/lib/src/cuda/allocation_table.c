/* 64 shards, each an open-addressing table under a bit that is held for some ten instructions and never across a call
 * of the driver. A table grows into mapped memory, because malloc may be the program's own and call us. */
#define _GNU_SOURCE
#include "cuda/allocation_table.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "fork.h"
#include "lock.h"

#define SHARDS 64
#define FIRST_ROOM 16 /* a power of two, as every later one */
#define BATCH 32

struct shard {
    _Alignas(64) bool busy;
    uint32_t room, used;
    struct allocation *items; /* NULL: `first` */
    struct allocation first[FIRST_ROOM];
};

static struct shard shards[SHARDS];

/* Only the thread that forked lives in the child, where nothing of the parent's memory can be used. */
static void empty_in_child(void) {
    memset(shards, 0, sizeof shards);
}

static uint8_t space_of(enum allocation_kind kind) {
    return kind >= ALLOCATION_LINEAR && kind <= ALLOCATION_GRAPH ? ALLOCATION_LINEAR : (uint8_t)kind;
}

static uint64_t hash_of(uint8_t space, uint64_t key) {
    uint64_t hash = (key ^ (uint64_t)space << 56) * UINT64_C(0x9e3779b97f4a7c15);
    return (hash ^ hash >> 32) * UINT64_C(0xd6e8feb86659fd93);
}

static struct shard *lock_shard(uint64_t hash) {
    struct shard *shard = &shards[hash >> 58];
    spin_lock(&shard->busy);
    if (!shard->room)
        shard->room = FIRST_ROOM;
    return shard;
}

static struct allocation *items_of(struct shard *shard) {
    return shard->items ? shard->items : shard->first;
}

/* The item's place, or the free one where it would go. At most three quarters are used, so there is one. */
static struct allocation *find(struct shard *shard, uint8_t space, uint64_t key, uint64_t hash) {
    struct allocation *items = items_of(shard);
    for (uint32_t at = (uint32_t)hash;; at++) {
        struct allocation *item = &items[at & (shard->room - 1)];
        if (!item->kind || (item->key == key && space_of(item->kind) == space))
            return item;
    }
}

static bool grow(struct shard *shard) {
    int saved = errno;
    uint32_t old_room = shard->room;
    struct allocation *old = items_of(shard);
    size_t size = (size_t)old_room * 2 * sizeof *old;
    struct allocation *fresh = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    errno = saved;
    if (fresh == MAP_FAILED)
        return false;
    bool mapped = shard->items != NULL;
    shard->items = fresh;
    shard->room = old_room * 2;
    for (uint32_t i = 0; i < old_room; i++)
        if (old[i].kind)
            *find(shard, space_of(old[i].kind), old[i].key, hash_of(space_of(old[i].kind), old[i].key)) = old[i];
    if (mapped)
        munmap(old, (size_t)old_room * sizeof *old);
    return true;
}

static bool has_room(struct shard *shard) {
    return shard->used < shard->room / 4 * 3 || grow(shard) || shard->used < shard->room - 1;
}

/* Take an item out of a run of occupied places: those behind it that may move up do. */
static void take_out(struct shard *shard, struct allocation *gone) {
    struct allocation *items = items_of(shard);
    uint32_t mask = shard->room - 1, hole = (uint32_t)(gone - items);
    for (uint32_t at = (hole + 1) & mask; items[at].kind; at = (at + 1) & mask) {
        uint32_t home = (uint32_t)hash_of(space_of(items[at].kind), items[at].key) & mask;
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            items[hole] = items[at];
            hole = at;
        }
    }
    items[hole].kind = 0;
    shard->used--;
}

/* With the shard locked. */
static bool insert(struct shard *shard, const struct allocation *item, uint64_t hash) {
    if (!has_room(shard))
        return false;
    *find(shard, space_of(item->kind), item->key, hash) = *item;
    shard->used++;
    return true;
}

static const uint64_t never_changes;

enum allocation_put allocation_put(const struct allocation *item, struct allocation *old) {
    return allocation_put_while(item, old, &never_changes, 0);
}

enum allocation_put allocation_put_while(const struct allocation *item, struct allocation *old, const uint64_t *word,
                                         uint64_t value) {
    fork_forgets(empty_in_child);
    uint64_t hash = hash_of(space_of(item->kind), item->key);
    struct shard *shard = lock_shard(hash);
    struct allocation *there = find(shard, space_of(item->kind), item->key, hash);
    enum allocation_put result = ALLOCATION_NEW;
    if (__atomic_load_n(word, __ATOMIC_SEQ_CST) != value) {
        result = ALLOCATION_STALE;
    } else if (there->kind) {
        *old = *there;
        *there = *item;
        result = ALLOCATION_REPLACED;
    } else if (!insert(shard, item, hash)) {
        result = ALLOCATION_FAILED;
    }
    spin_unlock(&shard->busy);
    return result;
}

bool allocation_put_new(const struct allocation *item) {
    fork_forgets(empty_in_child);
    uint64_t hash = hash_of(space_of(item->kind), item->key);
    struct shard *shard = lock_shard(hash);
    bool put = !find(shard, space_of(item->kind), item->key, hash)->kind && insert(shard, item, hash);
    spin_unlock(&shard->busy);
    return put;
}

bool allocation_join(const struct allocation *item) {
    struct allocation fresh = *item;
    fresh.count = 1;
    fork_forgets(empty_in_child);
    uint64_t hash = hash_of(space_of(item->kind), item->key);
    struct shard *shard = lock_shard(hash);
    struct allocation *there = find(shard, space_of(item->kind), item->key, hash);
    bool is_new = !there->kind;
    if (is_new)
        insert(shard, &fresh, hash);
    else
        there->count++;
    spin_unlock(&shard->busy);
    return is_new;
}

static bool look(enum allocation_kind kind, uint64_t key, struct allocation *item, bool take) {
    uint8_t space = space_of(kind);
    uint64_t hash = hash_of(space, key);
    struct shard *shard = lock_shard(hash);
    struct allocation *there = find(shard, space, key, hash);
    bool found = there->kind != 0;
    if (found) {
        *item = *there;
        if (take)
            take_out(shard, there);
    }
    spin_unlock(&shard->busy);
    return found;
}

bool allocation_take(enum allocation_kind kind, uint64_t key, struct allocation *item) {
    return look(kind, key, item, true);
}

bool allocation_get(enum allocation_kind kind, uint64_t key, struct allocation *item) {
    return look(kind, key, item, false);
}

bool allocation_count(enum allocation_kind kind, uint64_t key, int by, struct allocation *item) {
    uint8_t space = space_of(kind);
    uint64_t hash = hash_of(space, key);
    struct shard *shard = lock_shard(hash);
    struct allocation *there = find(shard, space, key, hash);
    bool found = there->kind != 0;
    if (found) {
        there->count = by < 0 && there->count < (uint32_t)-by ? 0 : there->count + (uint32_t)by;
        *item = *there;
        if (!item->count)
            take_out(shard, there);
    }
    spin_unlock(&shard->busy);
    return found;
}

void allocation_set_owner(enum allocation_kind kind, uint64_t key, uint64_t owner) {
    uint8_t space = space_of(kind);
    uint64_t hash = hash_of(space, key);
    struct shard *shard = lock_shard(hash);
    struct allocation *there = find(shard, space, key, hash);
    if (there->kind)
        there->owner = owner;
    spin_unlock(&shard->busy);
}

/* Taking one out moves others up, behind the point reached too: a pass is repeated until it takes nothing. */
static unsigned take_batch(struct shard *shard, uint32_t kinds, uint64_t owner, struct allocation batch[BATCH]) {
    unsigned taken = 0;
    spin_lock(&shard->busy);
    struct allocation *items = items_of(shard);
    for (uint32_t i = 0; i < shard->room && taken < BATCH; i++)
        while (taken < BATCH && items[i].kind && (kinds >> items[i].kind & 1) && items[i].owner == owner) {
            batch[taken++] = items[i];
            take_out(shard, &items[i]);
        }
    spin_unlock(&shard->busy);
    return taken;
}

void allocation_sweep(uint32_t kinds, uint64_t owner, void (*each)(const struct allocation *item, void *argument),
                      void *argument) {
    struct allocation batch[BATCH];
    for (struct shard *shard = shards; shard < shards + SHARDS; shard++)
        for (unsigned taken; (taken = take_batch(shard, kinds, owner, batch));)
            for (unsigned i = 0; i < taken; i++)
                each(&batch[i], argument);
}

void allocation_visit(enum allocation_kind kind, uint64_t owner,
                      void (*each)(const struct allocation *item, void *argument), void *argument) {
    for (struct shard *shard = shards; shard < shards + SHARDS; shard++) {
        spin_lock(&shard->busy);
        const struct allocation *items = items_of(shard);
        for (uint32_t i = 0; i < shard->room; i++)
            if (items[i].kind == kind && items[i].owner == owner)
                each(&items[i], argument);
        spin_unlock(&shard->busy);
    }
}
