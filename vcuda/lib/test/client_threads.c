/* What happens beside a thread that keeps launching: the process ends with work in flight, or captures a graph. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client.h"

enum { NODES = 8, OUTPUT = 64 };

struct worker {
    struct kernel kernel;
    void *context;
    atomic_int stop, failed;
    atomic_long launched;
};

/* Launches until it is told to stop, or until the driver refuses: it may be going away under it. */
static void *keep_launching(void *argument) {
    struct worker *worker = argument;
    struct kernel *kernel = &worker->kernel;
    void *stream, *params[] = {&kernel->us, &kernel->per_ms, &kernel->out};
    int result = driver.cuCtxSetCurrent(worker->context);
    if (!result)
        result = driver.cuStreamCreate(&stream, NON_BLOCKING);
    while (!result && !worker->stop) {
        result =
            driver.cuLaunchKernel(kernel->function, kernel->grid, 1, 1, 32, 1, 1, kernel->shared, stream, params, NULL);
        worker->launched += !result;
        if (!result && worker->launched % OUTPUT == 0)
            result = driver.cuStreamSynchronize(stream);
    }
    worker->failed = result;
    return NULL;
}

static pthread_t begin_launching(struct worker *worker) {
    pthread_t thread;
    must(driver.cuCtxGetCurrent(&worker->context), "cuCtxGetCurrent");
    must(pthread_create(&thread, NULL, keep_launching, worker), "pthread_create");
    return thread;
}

int run_leave(int argc, char **argv) {
    static struct worker worker; /* a thread may still read it while the process ends */
    const char *how = option(argc, argv, "--how", "return");
    long kernels = option_number(argc, argv, "--kernels", 64);
    device_pointer memory;
    void *stream;
    kernel_load(&worker.kernel, argc, argv, 1000);
    must(driver.cuMemAlloc(&memory, 64 << 20), "cuMemAlloc");
    must(driver.cuStreamCreate(&stream, NON_BLOCKING), "cuStreamCreate");
    for (long at = 0; at < kernels; at++)
        kernel_launch(&worker.kernel, stream);
    if (strcmp(how, "thread") == 0)
        begin_launching(&worker);
    printf("leaving\n");
    fflush(stdout);
    if (strcmp(how, "exit") == 0)
        _exit(0);
    if (strcmp(how, "kill") == 0)
        raise(SIGKILL);
    return 0;
}

/* One graph: captured, instantiated, launched, waited for and destroyed. The first error of the driver, or 0. */
static int capture_once(struct kernel *kernel, void *stream, int mode) {
    void *graph = NULL, *exec = NULL, *params[] = {&kernel->us, &kernel->per_ms, &kernel->out};
    int result = driver.cuStreamBeginCapture(stream, mode);
    for (int at = 0; at < NODES && !result; at++)
        result =
            driver.cuLaunchKernel(kernel->function, kernel->grid, 1, 1, 32, 1, 1, kernel->shared, stream, params, NULL);
    int ended = driver.cuStreamEndCapture(stream, &graph);
    result = result ? result : ended;
    if (!result)
        result = driver.cuGraphInstantiateWithFlags(&exec, graph, 0);
    if (!result)
        result = driver.cuGraphLaunch(exec, stream);
    if (!result)
        result = driver.cuStreamSynchronize(stream);
    if (exec)
        driver.cuGraphExecDestroy(exec);
    if (graph)
        driver.cuGraphDestroy(graph);
    return result;
}

int run_capture(int argc, char **argv) {
    struct worker worker = {.stop = 0};
    const char *name = option(argc, argv, "--mode", "global");
    int mode = strcmp(name, "global") == 0 ? 0 : strcmp(name, "thread") == 0 ? 1 : 2, failed = 0, first = 0;
    long rounds = option_number(argc, argv, "--rounds", 100);
    void *stream;
    kernel_load(&worker.kernel, argc, argv, 50);
    must(driver.cuStreamCreate(&stream, NON_BLOCKING), "cuStreamCreate");
    pthread_t thread = begin_launching(&worker);
    for (long at = 0; at < rounds; at++) {
        int result = capture_once(&worker.kernel, stream, mode);
        failed += result != 0;
        first = first ? first : result;
    }
    worker.stop = 1;
    pthread_join(thread, NULL);
    printf("captures %ld failed %d first_error %d launches %ld launch_error %d\n", rounds, failed, first,
           (long)worker.launched, (int)worker.failed);
    return 0;
}
