/* Stream-ordered pools: see guesses.h. */
#include "guesses.h"

static long long pool_attribute(void *pool, int attribute) {
    FIND(cuMemPoolGetAttribute, 11020, (void *, int, void *));
    uint64_t value = 0;
    must(cuMemPoolGetAttribute(pool, attribute, &value), "cuMemPoolGetAttribute");
    return (long long)value / 1024;
}
static void async_pool(void) {
    FIND(cuDeviceGetDefaultMemPool, 11020, (void **, int));
    void *pool;
    must(cuDeviceGetDefaultMemPool(&pool, device), "cuDeviceGetDefaultMemPool");
    pointer small = allocate_async(MIB), large = allocate_async(100 * MIB);
    answer("reserved_with_1_and_100_mib_kib", pool_attribute(pool, POOL_RESERVED));
    answer("used_kib", pool_attribute(pool, POOL_USED));
    answer("free", release_async(small) | release_async(large));
    answer("reserved_before_synchronise_kib", pool_attribute(pool, POOL_RESERVED));
    synchronise();
    answer("reserved_after_kib", pool_attribute(pool, POOL_RESERVED));
    taken("after");
}
static void pool_destroyed(void) {
    FIND(cuMemPoolCreate, 11020, (void **, const void *));
    FIND(cuMemAllocFromPoolAsync, 11020, (pointer *, size_t, void *, void *));
    FIND(cuMemPoolDestroy, 11020, (void *));
    FIND(cuMemsetD8, 3020, (pointer, unsigned char, size_t));
    struct pool_properties properties = {.alloc_type = PINNED, .location = {DEVICE, device}};
    void *pool;
    pointer memory;
    must(cuMemPoolCreate(&pool, &properties), "cuMemPoolCreate");
    must(cuMemAllocFromPoolAsync(&memory, 64 * MIB, pool, stream), "cuMemAllocFromPoolAsync");
    synchronise();
    answer("destroy_with_live_memory", cuMemPoolDestroy(pool));
    taken("after_destroy");
    answer("its_memory_still_works", cuMemsetD8(memory, 1, 64 * MIB));
    answer("its_memory_freed", release_async(memory));
    synchronise();
    taken("after_free");
}

static void pool_growth(void) {
    static const int kib[] = {4, 1 << 10, 2 << 10, 16 << 10, 31 << 10, 33 << 10, 64 << 10, 100 << 10, 200 << 10};
    FIND(cuDeviceGetDefaultMemPool, 11020, (void **, int));
    void *pool;
    must(cuDeviceGetDefaultMemPool(&pool, device), "cuDeviceGetDefaultMemPool");
    for (size_t at = 0; at < sizeof kib / sizeof *kib; at++) {
        allocate_async((size_t)kib[at] << 10);
        printf("reserved_with_%d_kib_more_kib %lld\n", kib[at], pool_attribute(pool, POOL_RESERVED));
    }
    taken("card");
}

static const struct question questions[] = {
    {"async_pool", async_pool},
    {"pool_growth", pool_growth},
    {"pool_destroyed", pool_destroyed},
};

int main(int argc, char **argv) {
    return ask(questions, sizeof questions / sizeof *questions, argc, argv);
}
