/* Threads that make, use and destroy pools, beside others that synchronise and are refused memory: libvcuda asks about
 * pools in all of them.
 *
 *   prog_pools POOLS
 *
 * Prints "ready" once it has destroyed so many and holds none, and what it says is free; ends with its input.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define MAKERS 2
#define FUNCTIONS(DO)                                                                                                  \
    DO(cuInit, (unsigned))                                                                                             \
    DO(cuDevicePrimaryCtxRetain, (void **, int))                                                                       \
    DO(cuCtxSetCurrent, (void *))                                                                                      \
    DO(cuCtxSynchronize, (void))                                                                                       \
    DO(cuMemAlloc_v2, (unsigned long long *, size_t))                                                                  \
    DO(cuMemPoolCreate, (void **, const void *))                                                                       \
    DO(cuMemPoolDestroy, (void *))                                                                                     \
    DO(cuMemAllocFromPoolAsync, (unsigned long long *, size_t, void *, void *))                                        \
    DO(cuMemFreeAsync, (unsigned long long, void *))                                                                   \
    DO(cuMemGetInfo_v2, (size_t *, size_t *))

#define DECLARE(name, parameters) static int(*name) parameters;
FUNCTIONS(DECLARE)
#undef DECLARE

static void *context;
static long pools;
static atomic_bool over;

static void must(const char *what, int result) {
    if (result == 0)
        return;
    printf("%s returned %d\n", what, result);
    exit(3);
}

static void *make(void *seed) {
    unsigned dice = (unsigned)(size_t)seed;
    must("cuCtxSetCurrent", cuCtxSetCurrent(context));
    for (long i = 0; i < pools; i++) {
        struct {
            int type, handle_types, location_type, location_id;
            void *win32;
            size_t most;
            char reserved[56];
        } props = {1, 0, 1, 0, NULL, 0, {0}};
        void *pool = NULL;
        unsigned long long at = 0;
        must("cuMemPoolCreate", cuMemPoolCreate(&pool, &props));
        must("cuMemAllocFromPoolAsync",
             cuMemAllocFromPoolAsync(&at, (size_t)(rand_r(&dice) % 8 + 1) << 20, pool, NULL));
        must("cuMemFreeAsync", cuMemFreeAsync(at, NULL));
        must("cuMemPoolDestroy", cuMemPoolDestroy(pool));
    }
    return NULL;
}

static void *synchronise(void *unused) {
    (void)unused;
    must("cuCtxSetCurrent", cuCtxSetCurrent(context));
    while (!over)
        must("cuCtxSynchronize", cuCtxSynchronize());
    return NULL;
}

/* Whoever is refused has pools give back what they keep first. */
static void *ask_too_much(void *unused) {
    unsigned long long at;
    (void)unused;
    must("cuCtxSetCurrent", cuCtxSetCurrent(context));
    while (!over)
        if (cuMemAlloc_v2(&at, (size_t)1 << 40) != 2)
            must("cuMemAlloc", 1);
    return NULL;
}

int main(int count, char **words) {
    pthread_t maker[MAKERS], beside[2];
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (count < 2 || !driver)
        return 2;
#define FIND(name, parameters) *(void **)(void *)&name = dlsym(driver, #name);
    FUNCTIONS(FIND)
#undef FIND
    pools = atol(words[1]);
    must("cuInit", cuInit(0));
    must("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, 0));
    pthread_create(&beside[0], NULL, synchronise, NULL);
    pthread_create(&beside[1], NULL, ask_too_much, NULL);
    for (size_t i = 0; i < MAKERS; i++)
        pthread_create(&maker[i], NULL, make, (void *)(i + 1));
    for (size_t i = 0; i < MAKERS; i++)
        pthread_join(maker[i], NULL);
    over = true;
    pthread_join(beside[0], NULL);
    pthread_join(beside[1], NULL);
    must("cuCtxSetCurrent", cuCtxSetCurrent(context));
    size_t left, whole;
    must("cuMemGetInfo", cuMemGetInfo_v2(&left, &whole));
    printf("ready %zu\n", left);
    fflush(stdout);
    getchar();
    return 0;
}
