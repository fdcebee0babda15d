/* Events and the queue of launches: see guesses.h. */
#include "guesses.h"

#include <stdatomic.h>
#include <time.h>

static void event_steps(void) {
    FIND(cuEventCreate, 2000, (void **, unsigned int));
    FIND(cuEventRecord, 2000, (void *, void *));
    FIND(cuEventSynchronize, 2000, (void *));
    FIND(cuEventElapsedTime, 2000, (float *, void *, void *));
    void *first, *second;
    long long unrecorded, least = 1LL << 40;
    float elapsed;
    must(cuEventCreate(&first, 0), "cuEventCreate");
    must(cuEventCreate(&second, 0), "cuEventCreate");
    unrecorded = cuEventElapsedTime(&elapsed, first, second);
    answer("elapsed_of_unrecorded", unrecorded);
    for (int at = 0; at < 200; at++) {
        must(cuEventRecord(first, stream), "cuEventRecord");
        must(cuEventRecord(second, stream), "cuEventRecord");
        must(cuEventSynchronize(second), "cuEventSynchronize");
        must(cuEventElapsedTime(&elapsed, first, second), "cuEventElapsedTime");
        long long steps = (long long)((double)elapsed * 1e6);
        least = steps < least ? steps : least;
    }
    answer("two_in_a_row_ns", least);
}

static atomic_int let_go;
static void block(void *unused) {
    (void)unused;
    for (int waited_ms = 0; !let_go && waited_ms < 2000; waited_ms++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}
static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}
/* Behind a host function that waits, launches return at once until the queue is full. */
static void launch_queue(void) {
    enum { MOST = 20000 };
    FIND(cuModuleLoadData, 2000, (void **, const void *));
    FIND(cuModuleGetFunction, 2000, (void **, void *, const char *));
    FIND(cuLaunchHostFunc, 10000, (void *, void (*)(void *), void *));
    FIND(cuLaunchKernel, 4000,
         (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **));
    void *module, *function;
    int launched = 0;
    must(cuModuleLoadData(&module, nothing_ptx), "cuModuleLoadData");
    must(cuModuleGetFunction(&function, module, "nothing"), "cuModuleGetFunction");
    must(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL), "cuLaunchKernel");
    synchronise();
    must(cuLaunchHostFunc(stream, block, NULL), "cuLaunchHostFunc");
    for (double begin = seconds(); launched < MOST && seconds() - begin < 0.5; begin = seconds(), launched++)
        must(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL), "cuLaunchKernel");
    let_go = 1;
    synchronise();
    answer("launches_until_one_waits", launched);
}

/* Does a host function that waits keep another stream's kernels, and its host functions? */
static atomic_int was_called;
static void mark(void *unused) {
    (void)unused;
    was_called = 1;
}
static int comes(int (*is_there)(void *), void *argument) {
    for (double begin = seconds(); seconds() - begin < 0.3;)
        if (is_there(argument))
            return 1;
    return 0;
}
static int was_marked(void *unused) {
    (void)unused;
    return was_called;
}
static int has_ended(void *other) {
    FIND(cuStreamQuery, 2000, (void *));
    return cuStreamQuery(other) == 0;
}
static void host_function(void) {
    FIND(cuModuleLoadData, 2000, (void **, const void *));
    FIND(cuModuleGetFunction, 2000, (void **, void *, const char *));
    FIND(cuStreamCreate, 2000, (void **, unsigned int));
    FIND(cuLaunchHostFunc, 10000, (void *, void (*)(void *), void *));
    FIND(cuLaunchKernel, 4000,
         (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **));
    void *module, *function, *other;
    must(cuModuleLoadData(&module, nothing_ptx), "cuModuleLoadData");
    must(cuModuleGetFunction(&function, module, "nothing"), "cuModuleGetFunction");
    must(cuStreamCreate(&other, 1), "cuStreamCreate");
    must(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, other, NULL, NULL), "cuLaunchKernel");
    synchronise();
    must(cuLaunchHostFunc(stream, block, NULL), "cuLaunchHostFunc");
    must(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL), "cuLaunchKernel");
    must(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, other, NULL, NULL), "cuLaunchKernel");
    answer("anothers_kernel_runs", comes(has_ended, other));
    answer("what_is_behind_it_runs", comes(has_ended, stream));
    must(cuLaunchHostFunc(other, mark, NULL), "cuLaunchHostFunc");
    answer("anothers_host_function_is_called", comes(was_marked, NULL));
    let_go = 1;
    synchronise();
}

static const struct question questions[] = {
    {"host_function", host_function},
    {"event_steps", event_steps},
    {"launch_queue", launch_queue},
};

int main(int argc, char **argv) {
    return ask(questions, sizeof questions / sizeof *questions, argc, argv);
}
