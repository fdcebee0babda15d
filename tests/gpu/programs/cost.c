/* What calls of the driver cost, in nanoseconds of the caller: run bare and under the library, the difference is ours.
 * Finds the driver as the CUDA runtime does and needs no CUDA header and no nvcc: the kernel is PTX. */
#include "driver.h"

#include <string.h>
#include <time.h>

enum { ROUNDS = 20, BATCH = 500, DISABLE_TIMING = 2, NON_BLOCKING = 1 };

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
/* The median round: the machine's own noise only ever adds. */
static void say(const char *name, double rounds[ROUNDS]) {
    qsort(rounds, ROUNDS, sizeof *rounds, ascending);
    printf("%s %.1f\n", name, rounds[ROUNDS / 2]);
}

/* `call` BATCH times a round, what is in flight awaited outside the measured time. */
#define MEASURE(name, call)                                                                                            \
    do {                                                                                                               \
        double rounds[ROUNDS];                                                                                         \
        for (int round = 0; round < ROUNDS; round++) {                                                                 \
            double begin = now_ns();                                                                                   \
            for (int at = 0; at < BATCH; at++)                                                                         \
                must(call, name);                                                                                      \
            rounds[round] = (now_ns() - begin) / BATCH;                                                                \
            must(cuStreamSynchronize(stream), "cuStreamSynchronize");                                                  \
        }                                                                                                              \
        say(name, rounds);                                                                                             \
    } while (0)

static int recorded;

/* Lets the stream go on when both events are in it, and after a hundredth of a second at the latest. */
static void wait_for_records(void *unused) {
    double begin = now_ns();
    (void)unused;
    while (!__atomic_load_n(&recorded, __ATOMIC_ACQUIRE) && now_ns() < begin + 1e7)
        ;
}

/* Of four pairs of events with nothing between them on an idle stream, the least, as the library learns what a record
 * takes of the card; the host's calls are in it unless the stream is held until both are there. */
#define SAY_PAIR(name, hold)                                                                                           \
    do {                                                                                                               \
        float least = 1e9f, ms;                                                                                        \
        for (int at = 0; at < 4; at++) {                                                                               \
            __atomic_store_n(&recorded, 0, __ATOMIC_RELEASE);                                                          \
            if (hold)                                                                                                  \
                must(cuLaunchHostFunc(stream, wait_for_records, NULL), "cuLaunchHostFunc");                            \
            must(cuEventRecord(timed, stream), "cuEventRecord");                                                       \
            must(cuEventRecord(second, stream), "cuEventRecord");                                                      \
            __atomic_store_n(&recorded, 1, __ATOMIC_RELEASE);                                                          \
            must(cuEventSynchronize(second), "cuEventSynchronize");                                                    \
            must(cuEventElapsedTime(&ms, timed, second), "cuEventElapsedTime");                                        \
            least = ms < least ? ms : least;                                                                           \
        }                                                                                                              \
        printf("%s %.1f\n", name, least * 1e6);                                                                        \
    } while (0)

int main(int argc, char **argv) {
    int card = argc > 1 ? atoi(argv[1]) : 0, device;
    void *context, *module, *function, *stream, *event, *timed, *second;
    size_t left, total;
    pointer memory;
    double begin = now_ns();
    open_driver();
    FIND(cuInit, 2000, (unsigned));
    FIND(cuDeviceGet, 2000, (int *, int));
    FIND(cuDevicePrimaryCtxRetain, 7000, (void **, int));
    FIND(cuCtxSetCurrent, 4000, (void *));
    FIND(cuModuleLoadData, 2000, (void **, const void *));
    FIND(cuModuleGetFunction, 2000, (void **, void *, const char *));
    FIND(cuStreamCreate, 2000, (void **, unsigned));
    FIND(cuStreamSynchronize, 2000, (void *));
    FIND(cuEventCreate, 2000, (void **, unsigned));
    FIND(cuEventRecord, 2000, (void *, void *));
    FIND(cuEventQuery, 2000, (void *));
    FIND(cuEventSynchronize, 2000, (void *));
    FIND(cuEventElapsedTime, 2000, (float *, void *, void *));
    FIND(cuLaunchHostFunc, 10000, (void *, void (*)(void *), void *));
    FIND(cuMemAlloc, 3020, (pointer *, size_t));
    FIND(cuMemFree, 3020, (pointer));
    FIND(cuMemAllocAsync, 11020, (pointer *, size_t, void *));
    FIND(cuMemFreeAsync, 11020, (pointer, void *));
    FIND(cuMemGetInfo, 3020, (size_t *, size_t *));
    FIND(cuLaunchKernel, 4000,
         (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **));
    must(cuInit(0), "cuInit");
    printf("init_ms %.3f\n", (now_ns() - begin) / 1e6);
    begin = now_ns();
    must(cuDeviceGet(&device, card), "cuDeviceGet");
    must(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    printf("context_ms %.3f\n", (now_ns() - begin) / 1e6);
    must(cuModuleLoadData(&module, nothing_ptx), "cuModuleLoadData");
    must(cuModuleGetFunction(&function, module, "nothing"), "cuModuleGetFunction");
    must(cuStreamCreate(&stream, NON_BLOCKING), "cuStreamCreate");
    must(cuEventCreate(&event, DISABLE_TIMING), "cuEventCreate");
    must(cuEventCreate(&timed, 0), "cuEventCreate");
    must(cuEventCreate(&second, 0), "cuEventCreate");
    SAY_PAIR("first_pair_ns", 0);
    for (int at = 0; at < BATCH; at++)
        must(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL), "cuLaunchKernel");
    must(cuStreamSynchronize(stream), "cuStreamSynchronize");
    MEASURE("launch_ns", cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
    MEASURE("event_record_ns", cuEventRecord(event, stream));
    MEASURE("timed_event_record_ns", cuEventRecord(timed, stream));
    must(cuEventSynchronize(timed), "cuEventSynchronize");
    MEASURE("event_query_ns", cuEventQuery(timed));
    MEASURE("round_trip_ns",
            cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL) || cuStreamSynchronize(stream));
    MEASURE("memory_info_ns", cuMemGetInfo(&left, &total));
    MEASURE("alloc_free_ns", cuMemAlloc(&memory, 4 << 20) || cuMemFree(memory));
    MEASURE("async_pair_ns", cuMemAllocAsync(&memory, 4 << 20, stream) || cuMemFreeAsync(memory, stream));
    SAY_PAIR("held_pair_ns", 1);
    if (argc > 2 && strcmp(argv[2], "hold") == 0) {
        puts("holding");
        fflush(stdout);
        getchar();
    }
    return 0;
}
