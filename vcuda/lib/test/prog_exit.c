/* Calls the driver from a handler that runs when the driver has ended already: registered before cuInit, and so run
 * after what that registers. Prints what each call returns, in main and in the handler. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static int (*free_memory)(unsigned long long), (*synchronize)(void), (*destroy)(void *);
static unsigned long long pointer;
static void *context;

static void after_the_driver(void) {
    int freed = free_memory(pointer), waited = synchronize(), destroyed = destroy(context);
    printf("%d %d %d\n", freed, waited, destroyed);
    fflush(stdout);
}

int main(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned), (*create)(void **, unsigned, int), (*allocate)(unsigned long long *, size_t);
    if (!library)
        return 2;
    *(void **)&init = dlsym(library, "cuInit");
    *(void **)&create = dlsym(library, "cuCtxCreate_v2");
    *(void **)&allocate = dlsym(library, "cuMemAlloc_v2");
    *(void **)&free_memory = dlsym(library, "cuMemFree_v2");
    *(void **)&synchronize = dlsym(library, "cuCtxSynchronize");
    *(void **)&destroy = dlsym(library, "cuCtxDestroy_v2");
    atexit(after_the_driver);
    int begun = init(0), created = create(&context, 0, 0), allocated = allocate(&pointer, 4096);
    printf("%d %d %d\n", begun, created, allocated);
    return 0;
}
