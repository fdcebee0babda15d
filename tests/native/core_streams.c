/* What a launch costs on many streams: core_streams <library> <launches> <streams>, in turns on so many streams; 0: each
 * launch on a stream of its own, made for it and destroyed after it. Prints the median of rounds of 120 launches, in ns
 * a launch. A round begins every 240 us, since no driver takes a launch in less than 2 us. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef int launch_fn(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                      void **);
enum { ROUND = 120, PACE_NS = 240000, STREAMS_MOST = 4096 };

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv) {
    static char function;
    static void *streams[STREAMS_MOST];
    void *library = argc > 3 ? dlopen(argv[1], RTLD_NOW) : NULL;
    int count = argc > 3 ? atoi(argv[3]) : -1;
    if (!library || count < 0 || count > STREAMS_MOST)
        return 2;
    launch_fn *launch = (launch_fn *)dlsym(library, "cuLaunchKernel");
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(library, "cuInit");
    int (*create)(void **, unsigned) = (int (*)(void **, unsigned))dlsym(library, "cuStreamCreate");
    int (*destroy)(void *) = (int (*)(void *))dlsym(library, "cuStreamDestroy_v2");
    if (!launch || !init || !create || !destroy || init(0))
        return 3;
    for (int i = 0; i < count; i++)
        create(&streams[i], 1);
    long rounds = atol(argv[2]) / ROUND, next = 0;
    double *took = malloc((size_t)rounds * sizeof *took);
    for (long round = 0; round < rounds; round++) {
        double begin = now_ns();
        for (int i = 0; i < ROUND; i++) {
            void *stream = count ? streams[next++ % count] : NULL;
            if (!count)
                create(&stream, 1);
            launch(&function, 8, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
            if (!count)
                destroy(stream);
        }
        took[round] = (now_ns() - begin) / ROUND;
        while (now_ns() - begin < PACE_NS)
            ;
    }
    qsort(took, (size_t)rounds, sizeof *took, ascending);
    printf("%.2f\n", took[rounds / 2]);
    return 0;
}
