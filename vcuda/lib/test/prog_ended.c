/* Threads allocate in a context that another thread ends at any instant.
 *
 *   prog_ended ROUNDS destroy|reset
 *
 * Prints "done" after all rounds: then it holds device 0's primary context and no memory in it. After a line of input
 * it exits.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB (1l << 20)
enum { THREADS = 3, GRANTED_AT_MOST = 40, OUT_OF_MEMORY = 2 };

typedef unsigned long long u64;

#define FUNCTIONS(DO)                                                                                                  \
    DO(cuInit, (unsigned))                                                                                             \
    DO(cuDevicePrimaryCtxRetain, (void **, int))                                                                       \
    DO(cuDevicePrimaryCtxReset_v2, (int))                                                                              \
    DO(cuCtxCreate_v2, (void **, unsigned, int))                                                                       \
    DO(cuCtxDestroy_v2, (void *))                                                                                      \
    DO(cuCtxSetCurrent, (void *))                                                                                      \
    DO(cuCtxPopCurrent_v2, (void **))                                                                                  \
    DO(cuCtxSetLimit, (int, size_t))                                                                                   \
    DO(cuMemAlloc_v2, (u64 *, size_t))                                                                                 \
    DO(cuMemAllocManaged, (u64 *, size_t, unsigned))                                                                   \
    DO(cuMemFree_v2, (u64))                                                                                            \
    DO(cuArray3DCreate_v2, (void **, const void *))

#define DECLARE(name, parameters) static int(*name) parameters;
FUNCTIONS(DECLARE)
#undef DECLARE

/* As in cuda.h. */
struct shape {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};

struct worker {
    pthread_t thread;
    unsigned seed;
    void *context;
};

static int started, steps; /* threads at work, and calls that they have made */

static void must(const char *what, int result) {
    if (result == 0)
        return;
    printf("%s returned %d\n", what, result);
    fflush(stdout);
    _exit(3);
}

/* One call that takes or gives back memory; what an ended context makes of it is not looked at. */
static void step(unsigned *seed) {
    static const struct shape shape = {700, 300, 0, 0x20, 4, 0};
    u64 pointer = 0;
    void *array;
    switch (rand_r(seed) % 5) {
    case 0:
        cuMemAlloc_v2(&pointer, 3 * MIB);
        break;
    case 1:
        cuMemAlloc_v2(&pointer, 5000);
        break;
    case 2:
        cuMemAllocManaged(&pointer, 2 * MIB, 1);
        break;
    case 3:
        cuArray3DCreate_v2(&array, &shape);
        break;
    case 4:
        cuCtxSetLimit(2, (size_t)(8 + 4 * (rand_r(seed) % 4)) << 20);
        break;
    }
    if (pointer && rand_r(seed) % 2)
        cuMemFree_v2(pointer);
}

static void *run(void *argument) {
    struct worker *worker = argument;
    must("cuCtxSetCurrent", cuCtxSetCurrent(worker->context));
    __atomic_add_fetch(&started, 1, __ATOMIC_SEQ_CST);
    for (int count = 0; count < GRANTED_AT_MOST; count++) {
        step(&worker->seed);
        __atomic_add_fetch(&steps, 1, __ATOMIC_SEQ_CST);
    }
    return NULL;
}

static void round_of(struct worker worker[THREADS], int seed, int reset) {
    void *context, *popped;
    if (reset)
        must("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, 0));
    else
        must("cuCtxCreate", cuCtxCreate_v2(&context, 0, 0));
    if (!reset)
        must("cuCtxPopCurrent", cuCtxPopCurrent_v2(&popped));
    started = steps = 0;
    for (int i = 0; i < THREADS; i++) {
        worker[i].seed = (unsigned)(seed * THREADS + i + 1);
        worker[i].context = context;
        pthread_create(&worker[i].thread, NULL, run, &worker[i]);
    }
    while (__atomic_load_n(&started, __ATOMIC_SEQ_CST) < THREADS ||
           __atomic_load_n(&steps, __ATOMIC_SEQ_CST) < seed % (THREADS * GRANTED_AT_MOST))
        ;
    if (reset)
        must("cuDevicePrimaryCtxReset", cuDevicePrimaryCtxReset_v2(0));
    else
        must("cuCtxDestroy", cuCtxDestroy_v2(context));
    for (int i = 0; i < THREADS; i++)
        pthread_join(worker[i].thread, NULL);
}

int main(int argc, char **argv) {
    static struct worker worker[THREADS];
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *primary;
    if (!library || argc < 3)
        return 2;
#define FIND(name, parameters) *(void **)&name = dlsym(library, #name);
    FUNCTIONS(FIND)
#undef FIND
    int reset = strcmp(argv[2], "reset") == 0;
    must("cuInit", cuInit(0));
    for (int i = 0; i < atoi(argv[1]); i++)
        round_of(worker, i, reset);
    must("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&primary, 0));
    must("cuCtxSetCurrent", cuCtxSetCurrent(primary));
    printf("done\n");
    fflush(stdout);
    getchar();
    return 0;
}
