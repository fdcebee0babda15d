/* Take and give back memory in every way, at random, until killed: what a container's limit has to survive.
 *
 *   prog_hammer SEED THREADS [STEPS]
 *
 * Prints "ready" once it holds a context, and after STEPS operations (without them: never) how many were granted and
 * refused; then it gives everything back. A call may be refused for want of memory and for nothing else.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB (1l << 20)
#define ITEMS 24

typedef unsigned long long u64;

#define FUNCTIONS(DO)                                                                                                  \
    DO(cuInit, (unsigned))                                                                                             \
    DO(cuDevicePrimaryCtxRetain, (void **, int))                                                                       \
    DO(cuCtxSetCurrent, (void *))                                                                                      \
    DO(cuCtxPopCurrent_v2, (void **))                                                                                  \
    DO(cuCtxCreate_v2, (void **, unsigned, int))                                                                       \
    DO(cuCtxDestroy_v2, (void *))                                                                                      \
    DO(cuCtxSynchronize, (void))                                                                                       \
    DO(cuMemAlloc_v2, (u64 *, size_t))                                                                                 \
    DO(cuMemAllocManaged, (u64 *, size_t, unsigned))                                                                   \
    DO(cuMemAllocPitch_v2, (u64 *, size_t *, size_t, size_t, unsigned))                                                \
    DO(cuMemFree_v2, (u64))                                                                                            \
    DO(cuMemAllocAsync, (u64 *, size_t, void *))                                                                       \
    DO(cuMemAllocFromPoolAsync, (u64 *, size_t, void *, void *))                                                       \
    DO(cuMemFreeAsync, (u64, void *))                                                                                  \
    DO(cuMemPoolCreate, (void **, const void *))                                                                       \
    DO(cuMemPoolTrimTo, (void *, size_t))                                                                              \
    DO(cuMemPoolSetAttribute, (void *, int, void *))                                                                   \
    DO(cuStreamCreate, (void **, unsigned))                                                                            \
    DO(cuArray3DCreate_v2, (void **, const void *))                                                                    \
    DO(cuArrayDestroy, (void *))                                                                                       \
    DO(cuMipmappedArrayCreate, (void **, const void *, unsigned))                                                      \
    DO(cuMipmappedArrayDestroy, (void *))                                                                              \
    DO(cuMemCreate, (u64 *, size_t, const void *, u64))                                                                \
    DO(cuMemRelease, (u64))                                                                                            \
    DO(cuMemAddressReserve, (u64 *, size_t, size_t, u64, u64))                                                         \
    DO(cuMemAddressFree, (u64, size_t))                                                                                \
    DO(cuMemMap, (u64, size_t, size_t, u64, u64))                                                                      \
    DO(cuMemUnmap, (u64, size_t))                                                                                      \
    DO(cuMemGetInfo_v2, (size_t *, size_t *))

#define DECLARE(name, parameters) static int(*name) parameters;
FUNCTIONS(DECLARE)
#undef DECLARE

/* As in cuda.h. */
struct location_props {
    int type, handle_types, location_type, location_id;
    void *win32;
    size_t max_size;
    char reserved[56];
};
struct shape {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};

struct item {
    enum { NOTHING, LINEAR, ASYNC, POOLED, ARRAY, MIPMAP, BLOCK, MAPPED, CONTEXT } kind;
    u64 handle, at;
    size_t bytes;
};

struct worker {
    pthread_t thread;
    unsigned seed;
    long steps, granted, refused;
    void *stream, *pool;
    struct item item[ITEMS];
};

static void *primary;

static void fail(const char *what, int result) {
    printf("%s returned %d\n", what, result);
    fflush(stdout);
    _exit(3);
}

/* Granted, or refused for want of memory. */
static int granted(struct worker *worker, const char *what, int result) {
    if (result != 0 && result != 2)
        fail(what, result);
    worker->granted += result == 0;
    worker->refused += result == 2;
    return result == 0;
}

static void must(const char *what, int result) {
    if (result != 0)
        fail(what, result);
}

static size_t some_bytes(struct worker *worker) {
    unsigned kind = (unsigned)rand_r(&worker->seed) % 4;
    size_t number = (size_t)rand_r(&worker->seed);
    return kind == 0 ? 1 + number % 4096 : kind == 1 ? 1 + number % (size_t)(MIB - 1) : 1 + number % (size_t)(40 * MIB);
}

static void map_block(struct worker *worker, struct item *item) {
    struct location_props props = {1, 0, 1, 0, NULL, 0, {0}};
    item->bytes = (some_bytes(worker) / (2 * MIB) + 1) * 2 * MIB;
    if (!granted(worker, "cuMemCreate", cuMemCreate(&item->handle, item->bytes, &props, 0)))
        return;
    item->kind = BLOCK;
    if (rand_r(&worker->seed) % 2)
        return;
    must("cuMemAddressReserve", cuMemAddressReserve(&item->at, item->bytes, 0, 0, 0));
    must("cuMemMap", cuMemMap(item->at, item->bytes, 0, item->handle, 0));
    must("cuMemRelease", cuMemRelease(item->handle));
    item->kind = MAPPED;
}

static void make_array(struct worker *worker, struct item *item) {
    struct shape shape = {1 + (size_t)rand_r(&worker->seed) % 2000,
                          1 + (size_t)rand_r(&worker->seed) % 2000,
                          0,
                          0x20,
                          1u << rand_r(&worker->seed) % 3,
                          0};
    void *array;
    int mipmap = rand_r(&worker->seed) % 2;
    int result = mipmap ? cuMipmappedArrayCreate(&array, &shape, 1 + (unsigned)rand_r(&worker->seed) % 12)
                        : cuArray3DCreate_v2(&array, &shape);
    if (!granted(worker, "an array", result))
        return;
    item->kind = mipmap ? MIPMAP : ARRAY;
    item->handle = (u64)(uintptr_t)array;
}

static void make_context(struct worker *worker, struct item *item) {
    void *context;
    if (!granted(worker, "cuCtxCreate", cuCtxCreate_v2(&context, 0, 0)))
        return;
    u64 unused;
    granted(worker, "cuMemAlloc in it", cuMemAlloc_v2(&unused, some_bytes(worker)));
    must("cuCtxPopCurrent", cuCtxPopCurrent_v2(&context));
    item->kind = CONTEXT;
    item->handle = (u64)(uintptr_t)context;
}

static void take(struct worker *worker, struct item *item) {
    size_t pitch, bytes = some_bytes(worker);
    switch (rand_r(&worker->seed) % 9) {
    case 0:
    case 1:
        if (granted(worker, "cuMemAlloc", cuMemAlloc_v2(&item->handle, bytes)))
            item->kind = LINEAR;
        break;
    case 2:
        if (granted(worker, "cuMemAllocManaged", cuMemAllocManaged(&item->handle, bytes, 1)))
            item->kind = LINEAR;
        break;
    case 3:
        if (granted(worker, "cuMemAllocPitch",
                    cuMemAllocPitch_v2(&item->handle, &pitch, 1 + bytes % 9000, 1 + bytes / 9000, 4)))
            item->kind = LINEAR;
        break;
    case 4:
        if (granted(worker, "cuMemAllocAsync", cuMemAllocAsync(&item->handle, bytes, worker->stream)))
            item->kind = ASYNC;
        break;
    case 5:
        if (granted(worker, "cuMemAllocFromPoolAsync",
                    cuMemAllocFromPoolAsync(&item->handle, bytes, worker->pool, worker->stream)))
            item->kind = POOLED;
        break;
    case 6:
        make_array(worker, item);
        break;
    case 7:
        map_block(worker, item);
        break;
    case 8:
        if (rand_r(&worker->seed) % 16 == 0)
            make_context(worker, item);
        break;
    }
}

static void give_back(struct worker *worker, struct item *item) {
    void *pointer = (void *)(uintptr_t)item->handle;
    int other = rand_r(&worker->seed) % 4 == 0;
    switch (item->kind) {
    case NOTHING:
        return;
    case LINEAR:
        must("cuMemFree", cuMemFree_v2(item->handle));
        break;
    case ASYNC:
    case POOLED:
        must("cuMemFreeAsync", other ? cuMemFree_v2(item->handle) : cuMemFreeAsync(item->handle, worker->stream));
        break;
    case ARRAY:
        must("cuArrayDestroy", cuArrayDestroy(pointer));
        break;
    case MIPMAP:
        must("cuMipmappedArrayDestroy", cuMipmappedArrayDestroy(pointer));
        break;
    case BLOCK:
        must("cuMemRelease", cuMemRelease(item->handle));
        break;
    case MAPPED:
        must("cuMemUnmap", cuMemUnmap(item->at, item->bytes));
        must("cuMemAddressFree", cuMemAddressFree(item->at, item->bytes));
        break;
    case CONTEXT:
        must("cuCtxDestroy", cuCtxDestroy_v2(pointer));
        break;
    }
    item->kind = NOTHING;
}

static void *run(void *argument) {
    struct worker *worker = argument;
    struct location_props props = {1, 0, 1, 0, NULL, 0, {0}};
    must("cuCtxSetCurrent", cuCtxSetCurrent(primary));
    int refused = cuStreamCreate(&worker->stream, 1); /* by the limit: then the null stream serves */
    must("cuStreamCreate", refused == 2 ? 0 : refused);
    must("cuMemPoolCreate", cuMemPoolCreate(&worker->pool, &props));
    uint64_t keep = (uint64_t)(20 * MIB);
    must("cuMemPoolSetAttribute", cuMemPoolSetAttribute(worker->pool, 4, &keep));
    for (long step = 0; worker->steps == 0 || step < worker->steps; step++) {
        struct item *item = &worker->item[rand_r(&worker->seed) % ITEMS];
        if (item->kind == NOTHING)
            take(worker, item);
        else
            give_back(worker, item);
        if (rand_r(&worker->seed) % 32 == 0)
            must("cuCtxSynchronize", cuCtxSynchronize());
        if (rand_r(&worker->seed) % 64 == 0)
            must("cuMemPoolTrimTo", cuMemPoolTrimTo(worker->pool, 0));
        size_t free_bytes, total;
        must("cuMemGetInfo", cuMemGetInfo_v2(&free_bytes, &total));
        if (free_bytes > total)
            fail("more free than there is", (int)(free_bytes - total));
    }
    for (int i = 0; i < ITEMS; i++)
        give_back(worker, &worker->item[i]);
    must("cuCtxSynchronize", cuCtxSynchronize());
    must("cuMemPoolTrimTo", cuMemPoolTrimTo(worker->pool, 0));
    return NULL;
}

int main(int argc, char **argv) {
    static struct worker worker[16];
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    int threads = argc > 2 ? atoi(argv[2]) : 1;
    long granted_all = 0, refused_all = 0;
    if (!library || argc < 3)
        return 2;
#define FIND(name, parameters) *(void **)&name = dlsym(library, #name);
    FUNCTIONS(FIND)
#undef FIND
    must("cuInit", cuInit(0));
    int result;
    while ((result = cuDevicePrimaryCtxRetain(&primary, 0)) == 2) /* the container is full: wait for a neighbour */
        usleep(2000);
    must("cuDevicePrimaryCtxRetain", result);
    printf("ready\n");
    fflush(stdout);
    for (int i = 0; i < threads && i < 16; i++) {
        worker[i].seed = (unsigned)(atoi(argv[1]) * 100 + i);
        worker[i].steps = argc > 3 ? atol(argv[3]) : 0;
        pthread_create(&worker[i].thread, NULL, run, &worker[i]);
    }
    for (int i = 0; i < threads && i < 16; i++) {
        pthread_join(worker[i].thread, NULL);
        granted_all += worker[i].granted;
        refused_all += worker[i].refused;
    }
    printf("%ld %ld\n", granted_all, refused_all);
    fflush(stdout);
    if (argc > 3)
        getchar(); /* still holding its context, for whoever looks at the account now */
    return 0;
}
