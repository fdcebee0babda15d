/* What a launch costs: core_time <library> <launches> <null|stream> [own|paced]. Prints the median and the 99th percentile
 * of rounds of 100 launches, both in ns a launch; `own` counts this thread's own time, so that others on the machine do
 * not; `paced` begins a round every 200 us, since no driver takes a launch in less than 2 us. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int launch_fn(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                      void **);
enum { ROUND = 100, PACE_NS = 200000 };

static clockid_t which = CLOCK_MONOTONIC;

static double now_ns(void) {
    struct timespec now;
    clock_gettime(which, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv) {
    static char function, stream;
    void *library = argc > 3 ? dlopen(argv[1], RTLD_NOW) : NULL;
    if (!library)
        return 2;
    launch_fn *launch = (launch_fn *)dlsym(library, "cuLaunchKernel");
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(library, "cuInit");
    if (!launch || !init || init(0))
        return 3;
    const char *how = argc > 4 ? argv[4] : "";
    if (!strcmp(how, "own"))
        which = CLOCK_THREAD_CPUTIME_ID;
    double pause_ns = strcmp(how, "paced") ? 0 : PACE_NS;
    long rounds = atol(argv[2]) / ROUND;
    double *took = malloc((size_t)rounds * sizeof *took);
    void *on = strcmp(argv[3], "null") ? &stream : NULL;
    for (int i = 0; i < 20000; i++)
        launch(&function, 8, 1, 1, 32, 1, 1, 0, on, NULL, NULL);
    for (long round = 0; round < rounds; round++) {
        double begin = now_ns();
        for (int i = 0; i < ROUND; i++)
            launch(&function, 8, 1, 1, 32, 1, 1, 0, on, NULL, NULL);
        took[round] = (now_ns() - begin) / ROUND;
        while (now_ns() - begin < pause_ns)
            ;
    }
    qsort(took, (size_t)rounds, sizeof *took, ascending);
    printf("%.2f %.2f\n", took[rounds / 2], took[rounds * 99 / 100]);
    return 0;
}
