/* The table of what a process holds, under threads: each has keys of its own, which must be there exactly when it put
 * them, and all share some granules, whose counts must come out even. Prints "whole" or what went wrong. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/allocation_table.h"

enum { THREADS = 4, KEYS = 3000, STEPS = 40000, SHARED = 16 };

static int faults;

static void fault(const char *what) {
    if (__atomic_fetch_add(&faults, 1, __ATOMIC_RELAXED) < 5)
        printf("%s\n", what);
}

struct worker {
    pthread_t thread;
    unsigned number, seed;
    unsigned char there[KEYS], joined[SHARED];
};

/* Keys as the driver's are: far apart, in steps of 512 or 2 MiB, of several kinds with the same numbers. */
static struct allocation item_of(const struct worker *worker, unsigned key) {
    static const uint8_t kinds[] = {ALLOCATION_LINEAR, ALLOCATION_SMALL, ALLOCATION_ARRAY, ALLOCATION_PHYSICAL};
    uint64_t address = UINT64_C(0x7f0000000000) + ((uint64_t)worker->number << 34) +
                       (uint64_t)key * (key % 2 ? 512 : UINT64_C(2) << 20);
    return (struct allocation){.key = address,
                               .bytes = key + 1,
                               .owner = worker->number + 1,
                               .count = 1,
                               .card = 3,
                               .kind = kinds[key / 2 % 4]};
}

static void own(struct worker *worker) {
    unsigned key = (unsigned)rand_r(&worker->seed) % KEYS;
    struct allocation item = item_of(worker, key), found;
    if (!worker->there[key]) {
        if (allocation_get(item.kind, item.key, &found))
            fault("an item was there that nobody put");
        if (allocation_put(&item, &found) != ALLOCATION_NEW)
            fault("a new item was not new");
    } else {
        if (!allocation_take(item.kind, item.key, &found) || found.bytes != item.bytes || found.owner != item.owner)
            fault("an item was lost or changed");
        if (allocation_take(item.kind, item.key, &found))
            fault("an item was taken twice");
    }
    worker->there[key] ^= 1;
}

static void share(struct worker *worker) {
    unsigned at = (unsigned)rand_r(&worker->seed) % SHARED;
    struct allocation granule = {.key = at, .bytes = 7, .kind = ALLOCATION_GRANULE}, found;
    if (!worker->joined[at])
        allocation_join(&granule);
    else if (!allocation_count(ALLOCATION_GRANULE, at, -1, &found) || found.bytes != 7)
        fault("a shared item was lost");
    worker->joined[at] ^= 1;
}

static void count_one(const struct allocation *item, void *count) {
    struct allocation unused;
    if (allocation_get((enum allocation_kind)item->kind, item->key, &unused)) /* may call back, and finds it gone */
        fault("a swept item is still there");
    ++*(unsigned *)count;
}

static void *run(void *argument) {
    struct worker *worker = argument;
    for (int step = 0; step < STEPS; step++)
        (rand_r(&worker->seed) % 4 ? own : share)(worker);
    for (unsigned at = 0; at < SHARED; at++)
        if (worker->joined[at]) {
            struct allocation unused;
            allocation_count(ALLOCATION_GRANULE, at, -1, &unused);
        }
    unsigned expected = 0, swept = 0;
    for (unsigned key = 0; key < KEYS; key++)
        expected += worker->there[key];
    allocation_sweep(1u << ALLOCATION_LINEAR | 1u << ALLOCATION_SMALL | 1u << ALLOCATION_ARRAY |
                         1u << ALLOCATION_PHYSICAL,
                     worker->number + 1, count_one, &swept);
    if (swept != expected)
        fault("a sweep found more or less than there was");
    return NULL;
}

/* A child has an empty table, even if another thread of its parent was inside it. */
static void fork_while_busy(void) {
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        int status = 0;
        if (child == 0) {
            struct allocation item = {.key = 5, .bytes = 1, .kind = ALLOCATION_ARRAY}, old;
            _exit(allocation_put(&item, &old) == ALLOCATION_NEW ? 0 : 1);
        }
        waitpid(child, &status, 0);
        if (status)
            fault("a child of fork found its parent's table");
    }
}

int main(void) {
    static struct worker worker[THREADS];
    struct allocation probe = {.key = 5, .bytes = 1, .kind = ALLOCATION_ARRAY}, found;
    allocation_put(&probe, &found);
    for (unsigned i = 0; i < THREADS; i++) {
        worker[i].number = i;
        worker[i].seed = i + 1;
        pthread_create(&worker[i].thread, NULL, run, &worker[i]);
    }
    fork_while_busy();
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(worker[i].thread, NULL);
    for (unsigned at = 0; at < SHARED; at++)
        if (allocation_get(ALLOCATION_GRANULE, at, &found))
            fault("a shared item outlived its users");
    if (!faults)
        printf("whole\n");
    return faults != 0;
}
