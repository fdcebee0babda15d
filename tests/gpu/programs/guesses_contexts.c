/* What contexts and streams take, and which pointers the resolver gives: see guesses.h. */
#include "guesses.h"

static void streams(void) {
    FIND(cuStreamCreate, 2000, (void **, unsigned int));
    void *made;
    for (int at = 0; at < 100; at++)
        must(cuStreamCreate(&made, 1), "cuStreamCreate");
    taken("100_streams");
}
static void heap(void) {
    FIND(cuCtxSetLimit, 3010, (int, size_t));
    answer("set", cuCtxSetLimit(HEAP_LIMIT, 64 * MIB));
    taken("heap_of_64_mib");
}
static void second_context(void) {
    FIND(cuCtxCreate, 3020, (void **, unsigned int, int));
    FIND(cuCtxDestroy, 4000, (void *));
    FIND(cuCtxSetCurrent, 4000, (void *));
    void *second;
    must(cuCtxCreate(&second, 0, device), "cuCtxCreate");
    taken("second_context");
    allocate(64 * MIB);
    answer("destroy", cuCtxDestroy(second));
    must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    taken("after_destroy");
}
static void contexts_by_number(void) {
    FIND(cuCtxCreate, 3020, (void **, unsigned int, int));
    void *made;
    for (int at = 2; at <= 4; at++) {
        char name[32];
        must(cuCtxCreate(&made, 0, device), "cuCtxCreate");
        snprintf(name, sizeof name, "contexts_%d", at);
        taken(name);
    }
}
static void resolver(void) {
    static const char *const names[][2] = {
        {"cuMemAlloc", "cuMemAlloc_v2"},
        {"cuMemFree", "cuMemFree_v2"},
        {"cuMemGetInfo", "cuMemGetInfo_v2"},
        {"cuLaunchKernel", "cuLaunchKernel"},
        {"cuLaunchKernelEx", "cuLaunchKernelEx"},
        {"cuGraphLaunch", "cuGraphLaunch"},
        {"cuMemAllocAsync", "cuMemAllocAsync"},
        {"cuMemFreeAsync", "cuMemFreeAsync"},
        {"cuMemCreate", "cuMemCreate"},
        {"cuMemRelease", "cuMemRelease"},
        {"cuStreamEndCapture", "cuStreamEndCapture"},
        {"cuEventQuery", "cuEventQuery"},
        {"cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2"},
        {"cuCtxDestroy", "cuCtxDestroy_v2"},
    };
    int other = 0;
    for (size_t at = 0; at < sizeof names / sizeof *names; at++) {
        void *found = NULL, *symbol = dlsym(library, names[at][1]);
        if (resolve(names[at][0], &found, 12020, 0, NULL) != 0 || found != symbol)
            other++;
    }
    answer("pointers_that_are_no_exported_symbol", other);
}

/* Do small allocations of two contexts share a granule? */
static void granules_of_contexts(void) {
    FIND(cuCtxCreate, 3020, (void **, unsigned int, int));
    void *second;
    allocate(4096);
    must(cuCtxCreate(&second, 0, device), "cuCtxCreate");
    long long before = (long long)free_bytes();
    allocate(4096);
    answer("4_kib_in_a_second_context_kib", (before - (long long)free_bytes()) / 1024);
}
static void reset(void) {
    FIND(cuDevicePrimaryCtxReset, 7000, (int));
    FIND(cuDevicePrimaryCtxRetain, 7000, (void **, int));
    FIND(cuCtxSetCurrent, 4000, (void *));
    void *again;
    allocate_async(64 * MIB);
    answer("reset", cuDevicePrimaryCtxReset(device));
    must(cuDevicePrimaryCtxRetain(&again, device), "cuDevicePrimaryCtxRetain");
    answer("same_handle", again == context);
    must(cuCtxSetCurrent(again), "cuCtxSetCurrent");
    taken("pool_memory_after_reset");
}

/* Is what pools keep over a reset used again? */
static void pool_after_reset(void) {
    FIND(cuDevicePrimaryCtxReset, 7000, (int));
    FIND(cuDevicePrimaryCtxRetain, 7000, (void **, int));
    FIND(cuCtxSetCurrent, 4000, (void *));
    FIND(cuStreamCreate, 2000, (void **, unsigned int));
    void *again;
    allocate_async(64 * MIB);
    taken("before");
    must(cuDevicePrimaryCtxReset(device), "cuDevicePrimaryCtxReset");
    must(cuDevicePrimaryCtxRetain(&again, device), "cuDevicePrimaryCtxRetain");
    must(cuCtxSetCurrent(again), "cuCtxSetCurrent");
    taken("after");
    must(cuStreamCreate(&stream, 1), "cuStreamCreate");
    allocate_async(64 * MIB);
    taken("64_mib_more");
}

static const struct question questions[] = {
    {"streams", streams},
    {"heap", heap},
    {"second_context", second_context},
    {"contexts_by_number", contexts_by_number},
    {"granules_of_contexts", granules_of_contexts},
    {"reset", reset},
    {"pool_after_reset", pool_after_reset},
    {"resolver", resolver},
};

int main(int argc, char **argv) {
    return ask(questions, sizeof questions / sizeof *questions, argc, argv);
}
