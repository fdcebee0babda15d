/* Questions to a driver whose answers no document gives for certain, one file a subject. `guesses_SUBJECT NAME` asks
 * one in a process of its own, and prints what the driver did: CUDA's error codes, and KiB of the card by cuMemGetInfo,
 * so nobody else may use the card meanwhile. */
#ifndef GUESSES_H
#define GUESSES_H

#include "driver.h"

#include <stdint.h>
#include <string.h>
#include <unistd.h>

enum {
    MIB = 1 << 20,
    DEVICE = 1,
    PINNED = 1,
    BY_DESCRIPTOR = 1,
    BY_FABRIC = 8,
    GLOBAL = 0,
    RELAXED = 2,
    AUTO_FREE = 1
};
enum { POOL_THRESHOLD = 4, POOL_RESERVED = 5, POOL_USED = 7, GRAPH_RESERVED = 2, HEAP_LIMIT = 2 };

struct location {
    int type, id;
};
struct pool_properties {
    int alloc_type, handle_types;
    struct location location;
    void *security;
    size_t most;
    unsigned char reserved[56];
};
struct memory_properties {
    int type, handle_types;
    struct location location;
    void *win32;
    unsigned char flags[8];
};
struct shape {
    size_t width, height, depth;
    int format;
    unsigned int channels, flags;
};

static int device;
static void *context, *stream;
static size_t begin_free;

static inline size_t free_bytes(void) {
    FIND(cuMemGetInfo, 3020, (size_t *, size_t *));
    size_t left = 0, total;
    must(cuMemGetInfo(&left, &total), "cuMemGetInfo");
    return left;
}
/* What the card has less than when the question began. */
static inline void taken(const char *what) {
    printf("%s_kib %lld\n", what, ((long long)begin_free - (long long)free_bytes()) / 1024);
}
static inline void answer(const char *what, long long value) {
    printf("%s %lld\n", what, value);
}

static inline void synchronise(void) {
    FIND(cuStreamSynchronize, 2000, (void *));
    answer("synchronise", cuStreamSynchronize(stream));
}

/* Why this question cannot be put to this card or on this machine: then nothing is compared. */
static inline void not_asked(const char *why) {
    printf("not_asked %s\n", why);
}

/* This program again in a role, as another process; it says by `ready` when it has begun. Whoever starts it kills it.
 */
static inline pid_t run_other(const char *role, int *ready) {
    int ends[2];
    must(pipe(ends), "pipe");
    pid_t other = fork();
    if (other == 0) {
        char number[16];
        snprintf(number, sizeof number, "%d", ends[1]);
        execl("/proc/self/exe", "guesses", role, number, (char *)NULL);
        _exit(1);
    }
    close(ends[1]);
    *ready = ends[0];
    return other;
}

static inline pointer allocate(size_t bytes) {
    FIND(cuMemAlloc, 3020, (pointer *, size_t));
    pointer memory = 0;
    must(cuMemAlloc(&memory, bytes), "cuMemAlloc");
    return memory;
}
static inline int release(pointer memory) {
    FIND(cuMemFree, 3020, (pointer));
    return cuMemFree(memory);
}
static inline pointer allocate_async(size_t bytes) {
    FIND(cuMemAllocAsync, 11020, (pointer *, size_t, void *));
    pointer memory = 0;
    must(cuMemAllocAsync(&memory, bytes, stream), "cuMemAllocAsync");
    return memory;
}
static inline int release_async(pointer memory) {
    FIND(cuMemFreeAsync, 11020, (pointer, void *));
    return cuMemFreeAsync(memory, stream);
}

struct question {
    const char *name;
    void (*ask)(void);
};

static inline void prepare(void) {
    open_driver();
    FIND(cuInit, 2000, (unsigned));
    FIND(cuDeviceGet, 2000, (int *, int));
    FIND(cuDevicePrimaryCtxRetain, 7000, (void **, int));
    FIND(cuCtxSetCurrent, 4000, (void *));
    FIND(cuStreamCreate, 2000, (void **, unsigned));
    must(cuInit(0), "cuInit");
    must(cuDeviceGet(&device, 0), "cuDeviceGet");
    must(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    must(cuStreamCreate(&stream, 1), "cuStreamCreate");
    begin_free = free_bytes();
}

static inline int ask(const struct question *questions, size_t count, int argc, char **argv) {
    for (size_t at = 0; at < count && argc == 2; at++) {
        if (strcmp(argv[1], questions[at].name) != 0)
            continue;
        prepare();
        questions[at].ask();
        return 0;
    }
    return 64;
}

#endif
