/* What the library adds to a call. Each measurement runs the bare driver and the front in turns within one process,
 * because machines drift; of each the median round counts.
 *
 *   calls forward ROUNDS        an unhooked call:  bare_ns front_ns
 *   calls memory ROUNDS BYTES   cuMemAlloc and cuMemFree, a call of both:  bare_ns front_ns
 *   calls init LIBRARY          wait for the end of stdin, then open it and call cuInit:  ns, ns of these without a core
 *   calls start ROUNDS PROGRAM PRELOAD   start and end a program:  bare_ns preloaded_ns
 *
 * The front is libcuda.so.1, the driver the library named by REAL_CUDA.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#define MOST_ROUNDS 4096

typedef int version_fn(int *);
typedef int alloc_fn(unsigned long long *, size_t);
typedef int free_fn(unsigned long long);

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int by_value(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return a < b ? -1 : a > b;
}

static double median(double *values, long count) {
    qsort(values, (size_t)count, sizeof *values, by_value);
    return values[count / 2];
}

static void *find(const char *library, const char *name) {
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    void *found = handle ? dlsym(handle, name) : NULL;
    if (!found) {
        fprintf(stderr, "%s: no %s\n", library ? library : "?", name);
        exit(2);
    }
    return found;
}

static void must(int result, const char *what) {
    if (result != 0) {
        fprintf(stderr, "%s returned %d\n", what, result);
        exit(2);
    }
}

static double round_of_versions(version_fn *call) {
    int version;
    enum { CALLS = 100000 };
    double start = now_ns();
    for (int i = 0; i < CALLS; i++)
        call(&version);
    return (now_ns() - start) / CALLS;
}

static double round_of_memory(alloc_fn *take, free_fn *give, size_t bytes) {
    unsigned long long at;
    enum { PAIRS = 200 };
    double start = now_ns();
    for (int i = 0; i < PAIRS; i++) {
        must(take(&at, bytes), "cuMemAlloc");
        must(give(at), "cuMemFree");
    }
    return (now_ns() - start) / (2 * PAIRS);
}

static int forward(long rounds) {
    static double bare[MOST_ROUNDS], front[MOST_ROUNDS];
    int (*init)(unsigned) = (int (*)(unsigned))find("libcuda.so.1", "cuInit");
    must(init(0), "cuInit"); /* before it the modelled driver looks at every name, which takes longer than any jump */
    version_fn *real = (version_fn *)find(getenv("REAL_CUDA"), "cuDriverGetVersion");
    version_fn *ours = (version_fn *)find("libcuda.so.1", "cuDriverGetVersion");
    for (long i = 0; i < rounds; i++) {
        bare[i] = round_of_versions(real);
        front[i] = round_of_versions(ours);
    }
    printf("%f %f\n", median(bare, rounds), median(front, rounds));
    return 0;
}

static int memory(long rounds, size_t bytes) {
    static double bare[MOST_ROUNDS], front[MOST_ROUNDS];
    const char *driver = getenv("REAL_CUDA"), *library = "libcuda.so.1";
    int (*init)(unsigned) = (int (*)(unsigned))find(library, "cuInit");
    int (*retain)(void **, int) = (int (*)(void **, int))find(library, "cuDevicePrimaryCtxRetain");
    int (*current)(void *) = (int (*)(void *))find(library, "cuCtxSetCurrent");
    alloc_fn *real_take = (alloc_fn *)find(driver, "cuMemAlloc_v2"), *take = (alloc_fn *)find(library, "cuMemAlloc_v2");
    free_fn *real_give = (free_fn *)find(driver, "cuMemFree_v2"), *give = (free_fn *)find(library, "cuMemFree_v2");
    void *context;
    unsigned long long kept;
    must(init(0), "cuInit");
    must(retain(&context, 0), "cuDevicePrimaryCtxRetain");
    must(current(context), "cuCtxSetCurrent");
    must(take(&kept, 512), "cuMemAlloc"); /* so that a granule of small allocations is there for both */
    for (long i = 0; i < rounds; i++) {
        bare[i] = round_of_memory(real_take, real_give, bytes);
        front[i] = round_of_memory(take, give, bytes) - bare[i]; /* a driver's own time drifts by more than we add */
    }
    double own = median(bare, rounds);
    printf("%f %f\n", own, own + median(front, rounds));
    return 0;
}

/* How long this process was ready to run and had no core, so far; -1 where the kernel does not say. */
static double waited_for_a_core_ns(void) {
    double ran, waited = -1;
    FILE *file = fopen("/proc/self/schedstat", "r");
    if (!file || fscanf(file, "%lf %lf", &ran, &waited) != 2)
        waited = -1;
    if (file)
        fclose(file);
    return waited;
}

/* The front opens the driver in cuInit, a program its driver before that: so both are timed from the opening on. */
static int init(const char *library) {
    printf("ready\n");
    fflush(stdout);
    while (getchar() != EOF)
        ;
    double before = waited_for_a_core_ns(), start = now_ns();
    int (*call)(unsigned) = (int (*)(unsigned))find(library, "cuInit");
    must(call(0), "cuInit");
    double took = now_ns() - start;
    printf("%.0f %.0f\n", took, waited_for_a_core_ns() - before);
    return 0;
}

static double started(const char *program, char *preload) {
    char *arguments[] = {(char *)program, NULL};
    char *environment[] = {preload, NULL};
    pid_t child;
    int status;
    double start = now_ns();
    must(posix_spawn(&child, program, NULL, NULL, arguments, environment), "posix_spawn");
    waitpid(child, &status, 0);
    must(status, program);
    return now_ns() - start;
}

static int start(long rounds, const char *program, const char *library) {
    static double bare[MOST_ROUNDS], preloaded[MOST_ROUNDS];
    char setting[4096];
    snprintf(setting, sizeof setting, "LD_PRELOAD=%s", library);
    for (long i = 0; i < rounds; i++) {
        bare[i] = started(program, NULL);
        preloaded[i] = started(program, setting);
    }
    printf("%f %f\n", median(bare, rounds), median(preloaded, rounds));
    return 0;
}

int main(int argc, char **argv) {
    long rounds = argc > 2 ? atol(argv[2]) : 0;
    if (argc < 3)
        return 2;
    if (strcmp(argv[1], "init") == 0)
        return init(argv[2]);
    if (rounds < 1 || rounds > MOST_ROUNDS)
        return 2;
    if (strcmp(argv[1], "forward") == 0)
        return forward(rounds);
    if (strcmp(argv[1], "memory") == 0 && argc > 3)
        return memory(rounds, (size_t)atoll(argv[3]));
    if (strcmp(argv[1], "start") == 0 && argc > 4)
        return start(rounds, argv[3], argv[4]);
    return 2;
}
