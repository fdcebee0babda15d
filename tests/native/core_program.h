/* What the programs that load a card have in common: the driver by its name, a card, its kernels, and the clock. */
#ifndef CORE_PROGRAM_H
#define CORE_PROGRAM_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* cuLaunchKernel: function, grid, block, shared memory, stream, parameters. */
typedef int launch_fn(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

static void *library;

static inline double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static inline void must(int result, const char *what) {
    if (result) {
        fprintf(stderr, "%s: %d\n", what, result);
        exit(1);
    }
}

/* Exits with 3 where the driver has no such function. */
static inline void *find(const char *name) {
    void *found = dlsym(library, name);
    if (!found)
        exit(3);
    return found;
}

/* Exits with 2 where there is no driver. */
static inline void open_driver(void) {
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library)
        exit(2);
    must(((int (*)(unsigned))find("cuInit"))(0), "cuInit");
}

/* The card's primary context, which is current then. */
static inline void *open_card(int number) {
    void *context;
    must(((int (*)(void **, int))find("cuDevicePrimaryCtxRetain"))(&context, number), "cuDevicePrimaryCtxRetain");
    must(((int (*)(void *))find("cuCtxSetCurrent"))(context), "cuCtxSetCurrent");
    return context;
}

/* Code for the current context: on the stand-in, every kernel that there is. */
static inline void *load_module(void) {
    void *module;
    must(((int (*)(void **, const void *))find("cuModuleLoadData"))(&module, "\177ELF any binary"), "cuModuleLoadData");
    return module;
}

static inline void *find_kernel(void *module, const char *name) {
    void *kernel;
    must(((int (*)(void **, void *, const char *))find("cuModuleGetFunction"))(&kernel, module, name), "cuModuleGetFunction");
    return kernel;
}

/* A kernel that takes so many microseconds. */
static inline void *find_spin(void *module, const char *microseconds) {
    char name[32];
    snprintf(name, sizeof name, "spin_%sus", microseconds);
    return find_kernel(module, name);
}

#endif
