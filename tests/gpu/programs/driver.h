/* The driver, found as the CUDA runtime finds it: no CUDA header and no nvcc are needed. */
#ifndef DRIVER_H
#define DRIVER_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

typedef unsigned long long pointer;
static int (*resolve)(const char *, void **, int, unsigned long long, int *);
static void *library;

static inline void open_driver(void) {
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library || !(*(void **)&resolve = dlsym(library, "cuGetProcAddress_v2"))) {
        fprintf(stderr, "no CUDA driver of 12.0 or newer\n");
        exit(1);
    }
}

static inline void *find(const char *name, int version) {
    void *found = NULL;
    if (resolve(name, &found, version, 0, NULL) != 0 || !found) {
        fprintf(stderr, "the CUDA driver has no %s\n", name);
        exit(1);
    }
    return found;
}
/* A variable of the function's name, resolved: the oldest version that has this form. */
#define FIND(name, version, parameters)                                                                                \
    int(*name) parameters;                                                                                             \
    *(void **)&name = find(#name, version)

/* A kernel that does nothing. */
static const char nothing_ptx[] __attribute__((unused)) =
    ".version 6.3\n.target sm_70\n.address_size 64\n.visible .entry nothing()\n{\n  ret;\n}\n";

static inline void must(int result, const char *what) {
    if (result == 0)
        return;
    fprintf(stderr, "%s failed with CUDA error %d\n", what, result);
    exit(1);
}

#endif
