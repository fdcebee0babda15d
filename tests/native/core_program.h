/* What the programs that load a card have in common: the driver by its name, and the clock. */
#ifndef CORE_PROGRAM_H
#define CORE_PROGRAM_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

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

/* Exits with 2 where there is no driver. */
static inline void open_driver(void) {
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library)
        exit(2);
}

/* Exits with 3 where the driver has no such function. */
static inline void *find(const char *name) {
    void *found = dlsym(library, name);
    if (!found)
        exit(3);
    return found;
}

#endif
