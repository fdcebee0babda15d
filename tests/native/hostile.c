/* A tenant's program that wants more memory than its container has. It comes by the driver in the way it is told, takes
 * all it can get by every kind of allocation, says so, and holds it until stdin ends.
 *
 *   hostile HOW [FILE] [then WHAT]
 *
 * HOW: linked, dlopen, deepbind, namespace, next, dlvsym, walk, resolver, old resolver; FILE: what is opened
 * (libcuda.so.1). WHAT: fork, vfork, exec, threads; closed: the library's descriptors, then copies of itself; zero, garbage,
 * reap: what it does to the usage page all the while; jump, handler: out of a call of the driver that it has a signal
 * interrupt, or from within.
 * Ends with 1 if it got no driver, 4 if CUDA is refused.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE "/etc/vcuda/usage"
#define PAGE_BYTES (320 * 1024)
#define ACCOUNTS 4096 /* where the page's cards begin; its slots follow at 12288 */
#define SLOTS 12288

typedef unsigned long long u64;
typedef int call(); /* of any arguments: old style, on purpose */

static const char *self, *how, *file = "libcuda.so.1", *what = "";
static void *library;

static void *walk(void *handle, const char *name) {
    struct link_map *map = handle;
    ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    for (ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++) {
        if (d->d_tag == DT_SYMTAB)
            symbols = (void *)d->d_un.d_ptr;
        if (d->d_tag == DT_STRTAB)
            strings = (void *)d->d_un.d_ptr;
    }
    for (int i = 1; symbols && i < 4096; i++)
        if (symbols[i].st_shndx && !strcmp(strings + symbols[i].st_name, name))
            return (void *)(map->l_addr + symbols[i].st_value);
    return NULL;
}

static void *open_library(void) {
    if (!strcmp(how, "deepbind"))
        return dlopen(file, RTLD_NOW | RTLD_DEEPBIND);
    if (!strcmp(how, "namespace"))
        return dlmopen(LM_ID_NEWLM, file, RTLD_NOW);
    if (!strcmp(how, "next"))
        return dlopen(file, RTLD_NOW | RTLD_GLOBAL) ? RTLD_DEFAULT : NULL;
    return strcmp(how, "linked") ? dlopen(file, RTLD_NOW) : RTLD_DEFAULT;
}

/* The name without its version, as the resolver knows it, and the release that it is asked for. */
static void *resolve(const char *name, int version, int flags) {
    char plain[64];
    void *found = NULL, *self = NULL;
    int status = 0;
    snprintf(plain, sizeof plain, "%s", name);
    char *end = strstr(plain, "_v2");
    if (end)
        *end = '\0';
    call *first = (call *)dlsym(library, "cuGetProcAddress_v2"), *old = (call *)dlsym(library, "cuGetProcAddress");
    if (!strcmp(how, "old resolver"))
        old(plain, &found, version, (u64)flags);
    else if (first("cuGetProcAddress", &self, 12000, (u64)0, &status) == 0 && self) /* through what it says is itself */
        ((call *)self)(plain, &found, version, (u64)flags, &status);
    return found;
}

static call *find(const char *name) {
    void *found = NULL;
    if (!strcmp(how, "dlvsym")) {
        void *(*real)(void *, const char *) = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
        found = real ? real(library, name) : NULL;
    } else
        if (!strcmp(how, "walk"))
        found = walk(library, name);
    else if (strstr(how, "resolver"))
        found = resolve(name, 12020, 0);
    else
        found = dlsym(library, name);
    if (!found) {
        printf("no %s\n", name);
        exit(1);
    }
    return (call *)found;
}

struct pool_props {
    int type, handle, location, id;
    void *security;
    char reserved[64];
};

/* All that is to be had in one way: large pieces first, then ever smaller ones. */
static void greedy(int (*take)(size_t)) {
    for (size_t size = 1ul << 30; size >= 512; size /= 2)
        for (int i = 0; i < 4096 && take(size) == 0; i++)
            ;
}

static call *alloc, *managed, *pitched, *async, *block, *array;
static int take_linear(size_t size) {
    u64 at;
    return alloc(&at, size);
}
static int take_managed(size_t size) {
    u64 at;
    return managed(&at, size, 1);
}
static int take_pitched(size_t size) {
    u64 at;
    size_t pitch;
    return pitched(&at, &pitch, size < 65536 ? size : 65536, size < 65536 ? 1ul : size / 65536, 4u);
}
static int take_async(size_t size) {
    u64 at;
    return async(&at, size, NULL);
}
static int take_block(size_t size) {
    struct {
        int type, handles, location, id;
        void *meta;
        u64 flags;
    } props = {1, 0, 1, 0, NULL, 0};
    u64 handle;
    return size < 2ul << 20 ? 1 : block(&handle, size, &props, 0ull);
}
static int take_array(size_t size) {
    size_t shape[5] = {size < 32768 ? size : 32768, size < 32768 ? 1 : size / 32768, 0x100000001u, 0, 0};
    struct {
        size_t width, height;
        unsigned format, channels;
    } descriptor = {shape[0], shape[1], 1, 1};
    void *made;
    return descriptor.height > 32768 ? 1 : array(&made, &descriptor);
}

static void *grab(void *context) {
    find("cuCtxSetCurrent")(context);
    alloc = find("cuMemAlloc_v2"), managed = find("cuMemAllocManaged"), pitched = find("cuMemAllocPitch_v2");
    async = find("cuMemAllocAsync"), block = find("cuMemCreate"), array = find("cuArrayCreate_v2");
    int (*ways[])(size_t) = {take_block, take_async, take_array, take_pitched, take_linear, take_managed};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        greedy(ways[i]);
    if (strstr(how, "resolver")) /* every release, every mode */
        for (int version = 2000; version <= 13050; version += 10)
            for (int flags = 0; flags < 3; flags++) {
                void *one = resolve("cuMemAlloc", version, flags), *two = resolve("cuMemAllocAsync", version, flags);
                u64 at;
                if (one && version >= 3020)
                    ((call *)one)(&at, 1ul << 20);
                if (two)
                    ((call *)two)(&at, 1ul << 20, NULL);
            }
    return NULL;
}

/* Its own account is nothing, or anything, all the time. */
static void *tamper(void *how_much) {
    unsigned char *page = how_much;
    for (unsigned turn = 0;; turn++) {
        if (!strcmp(what, "zero"))
            memset(page + ACCOUNTS, 0, PAGE_BYTES - ACCOUNTS);
        else if (!strcmp(what, "reap")) /* each slot says that nobody is there */
            for (int i = 0; i < 1024; i++)
                page[SLOTS + i * 256] = 0;
        else
            page[ACCOUNTS + rand() % (PAGE_BYTES - ACCOUNTS)] = (unsigned char)rand();
        if (turn % 64 == 0)
            usleep(1);
    }
    return NULL;
}

static void hold(void) {
    char ignored;
    printf("holding\n");
    fflush(stdout);
    while (read(STDIN_FILENO, &ignored, 1) > 0)
        ;
}

static sigjmp_buf before_the_call;

static void interrupted(int number) {
    (void)number;
    if (!strcmp(what, "jump"))
        siglongjmp(before_the_call, 1);
    void *context = NULL;
    find("cuCtxGetCurrent")(&context);
    grab(context);
    hold();
    _exit(0);
}

/* The driver faults on an output that cannot be written to. */
static void interrupt(void) {
    signal(SIGSEGV, interrupted);
    if (sigsetjmp(before_the_call, 1) == 0)
        find("cuMemGetInfo_v2")((size_t *)16, (size_t *)16);
}

static void copies(void) {
    for (int i = 0; i < 3; i++)
        if (vfork() == 0) {
            execl(self, self, how, file, (char *)NULL);
            _exit(1);
        }
}

static void use_card(void) {
    void *context;
    if ((library = open_library()) == NULL && strcmp(how, "next") && strcmp(how, "linked")) {
        printf("no library\n");
        exit(1);
    }
    int result = find("cuInit")(0u);
    if (result == 0)
        result = find("cuDevicePrimaryCtxRetain")(&context, 0);
    if (result == 2)
        return; /* not even a context: others of the container have it all */
    if (result) {
        printf("refused %d\n", result);
        exit(4);
    }
    if (!strcmp(what, "zero") || !strcmp(what, "garbage") || !strcmp(what, "reap")) {
        pthread_t thread;
        int fd = open(PAGE, O_RDWR);
        void *page = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        pthread_create(&thread, NULL, tamper, page);
    }
    if (!strcmp(what, "jump") || !strcmp(what, "handler")) {
        find("cuCtxSetCurrent")(context);
        interrupt();
    }
    if (!strcmp(what, "threads")) {
        pthread_t thread[8];
        for (int i = 0; i < 8; i++)
            pthread_create(&thread[i], NULL, grab, context);
        for (int i = 0; i < 8; i++)
            pthread_join(thread[i], NULL);
    }
    grab(context);
}

int main(int argc, char **argv) {
    int next = 2;
    how = argc > 1 ? argv[1] : "dlopen";
    if (argc > next && strcmp(argv[next], "then"))
        file = argv[next++];
    if (argc > next + 1)
        what = argv[next + 1];
    self = argv[0];
    if (!strcmp(what, "fork"))
        for (int i = 0; i < 3; i++)
            if (fork() == 0)
                break;
    if (!strcmp(what, "vfork"))
        copies();
    use_card();
    if (!strcmp(what, "closed")) { /* the lock by which the others know that this one lives goes with its descriptor */
        for (int fd = 3; fd < 4096; fd++) {
            char link[32], path[256] = "";
            snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
            if (readlink(link, path, sizeof path - 1) > 0 && !strcmp(path, PAGE))
                close(fd);
        }
        copies();
    }
    if (!strcmp(what, "exec")) { /* what the new program takes comes on top, if anything of the old one is left */
        execl(self, self, how, file, (char *)NULL);
        return 1;
    }
    hold();
    while (wait(NULL) > 0)
        ;
    return 0;
}
