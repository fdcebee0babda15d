/* Questions to a driver whose answers no document gives for certain. `guesses list` names them; `guesses NAME` asks one
 * in a process of its own, and prints what the driver did: CUDA's error codes, and KiB of the card by cuMemGetInfo, so
 * nobody else may use the card meanwhile. */
#include "driver.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MIB = 1 << 20, DEVICE = 1, PINNED = 1, BY_DESCRIPTOR = 1, GLOBAL = 0, RELAXED = 2, AUTO_FREE = 1 };
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

static size_t free_bytes(void) {
    FIND(cuMemGetInfo, 3020, (size_t *, size_t *));
    size_t left = 0, total;
    must(cuMemGetInfo(&left, &total), "cuMemGetInfo");
    return left;
}
/* What the card has less than when the question began. */
static void taken(const char *what) {
    printf("%s_kib %lld\n", what, ((long long)begin_free - (long long)free_bytes()) / 1024);
}
static void answer(const char *what, long long value) {
    printf("%s %lld\n", what, value);
}

static void synchronise(void) {
    FIND(cuStreamSynchronize, 2000, (void *));
    answer("synchronise", cuStreamSynchronize(stream));
}

static pointer allocate(size_t bytes) {
    FIND(cuMemAlloc, 3020, (pointer *, size_t));
    pointer memory = 0;
    must(cuMemAlloc(&memory, bytes), "cuMemAlloc");
    return memory;
}
static int release(pointer memory) {
    FIND(cuMemFree, 3020, (pointer));
    return cuMemFree(memory);
}
static pointer allocate_async(size_t bytes) {
    FIND(cuMemAllocAsync, 11020, (pointer *, size_t, void *));
    pointer memory = 0;
    must(cuMemAllocAsync(&memory, bytes, stream), "cuMemAllocAsync");
    return memory;
}
static int release_async(pointer memory) {
    FIND(cuMemFreeAsync, 11020, (pointer, void *));
    return cuMemFreeAsync(memory, stream);
}

static void small_allocations(void) {
    for (int at = 0; at < 100; at++)
        allocate(4096);
    taken("100_of_4_kib");
    for (int at = 0; at < 500; at++)
        allocate(4096);
    taken("600_of_4_kib");
}
static void odd_sizes(void) {
    allocate(MIB);
    taken("1_mib");
    allocate(MIB + 1);
    taken("1_mib_and_a_byte_more");
    allocate(5 * MIB);
    taken("5_mib_more");
}
static void nothing(void) {
    FIND(cuMemAlloc, 3020, (pointer *, size_t));
    pointer memory = 1;
    answer("alloc_of_0", cuMemAlloc(&memory, 0));
    answer("free_of_0", release(0));
    answer("free_of_a_stranger", release(0x1234000));
}
static void mixed_frees(void) {
    pointer memory = allocate(64 * MIB);
    answer("async_free_of_plain", release_async(memory));
    synchronise();
    taken("after");
    memory = allocate_async(64 * MIB);
    answer("plain_free_of_async", release(memory));
    taken("after_that");
}

static long long pool_attribute(void *pool, int attribute) {
    FIND(cuMemPoolGetAttribute, 11020, (void *, int, void *));
    uint64_t value = 0;
    must(cuMemPoolGetAttribute(pool, attribute, &value), "cuMemPoolGetAttribute");
    return (long long)value / 1024;
}
static void async_pool(void) {
    FIND(cuDeviceGetDefaultMemPool, 11020, (void **, int));
    void *pool;
    must(cuDeviceGetDefaultMemPool(&pool, device), "cuDeviceGetDefaultMemPool");
    pointer small = allocate_async(MIB), large = allocate_async(100 * MIB);
    answer("reserved_with_1_and_100_mib_kib", pool_attribute(pool, POOL_RESERVED));
    answer("used_kib", pool_attribute(pool, POOL_USED));
    answer("free", release_async(small) | release_async(large));
    answer("reserved_before_synchronise_kib", pool_attribute(pool, POOL_RESERVED));
    synchronise();
    answer("reserved_after_kib", pool_attribute(pool, POOL_RESERVED));
    taken("after");
}
static void pool_destroyed(void) {
    FIND(cuMemPoolCreate, 11020, (void **, const void *));
    FIND(cuMemAllocFromPoolAsync, 11020, (pointer *, size_t, void *, void *));
    FIND(cuMemPoolDestroy, 11020, (void *));
    FIND(cuMemsetD8, 3020, (pointer, unsigned char, size_t));
    struct pool_properties properties = {.alloc_type = PINNED, .location = {DEVICE, device}};
    void *pool;
    pointer memory;
    must(cuMemPoolCreate(&pool, &properties), "cuMemPoolCreate");
    must(cuMemAllocFromPoolAsync(&memory, 64 * MIB, pool, stream), "cuMemAllocFromPoolAsync");
    synchronise();
    answer("destroy_with_live_memory", cuMemPoolDestroy(pool));
    taken("after_destroy");
    answer("its_memory_still_works", cuMemsetD8(memory, 1, 64 * MIB));
    answer("its_memory_freed", release_async(memory));
    synchronise();
    taken("after_free");
}

static void *graph, *exec;
static void capture_begin(void) {
    FIND(cuStreamBeginCapture, 10010, (void *, int));
    must(cuStreamBeginCapture(stream, RELAXED), "cuStreamBeginCapture");
}
static void capture_end(unsigned long long flags) {
    FIND(cuStreamEndCapture, 10000, (void *, void **));
    FIND(cuGraphInstantiateWithFlags, 11040, (void **, void *, unsigned long long));
    must(cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
    answer("instantiate", cuGraphInstantiateWithFlags(&exec, graph, flags));
}
static int graph_launch(void) {
    FIND(cuGraphLaunch, 10000, (void *, void *));
    return cuGraphLaunch(exec, stream);
}
static void graph_reserved(const char *what) {
    FIND(cuDeviceGetGraphMemAttribute, 11040, (int, int, void *));
    uint64_t value = 0;
    must(cuDeviceGetGraphMemAttribute(device, GRAPH_RESERVED, &value), "cuDeviceGetGraphMemAttribute");
    printf("%s_kib %lld\n", what, (long long)value / 1024);
}
static void graph_chain(void) {
    capture_begin();
    for (int at = 0; at < 10; at++)
        must(release_async(allocate_async(64 * MIB)), "cuMemFreeAsync");
    capture_end(0);
    graph_reserved("reserved_at_instantiation");
    answer("launch", graph_launch());
    synchronise();
    graph_reserved("reserved_by_10_times_64_mib_one_after_another");
    FIND(cuGraphExecDestroy, 10000, (void *));
    answer("destroy", cuGraphExecDestroy(exec));
    graph_reserved("reserved_after_destroy");
    FIND(cuDeviceGraphMemTrim, 11040, (int));
    answer("trim", cuDeviceGraphMemTrim(device));
    graph_reserved("reserved_after_trim");
}
static void graph_together(void) {
    pointer memory[4];
    capture_begin();
    for (int at = 0; at < 4; at++)
        memory[at] = allocate_async(64 * MIB);
    for (int at = 0; at < 4; at++)
        must(release_async(memory[at]), "cuMemFreeAsync");
    capture_end(0);
    answer("launch", graph_launch());
    synchronise();
    graph_reserved("reserved_by_4_times_64_mib_at_once");
}
static void graph_kept(unsigned long long flags) {
    capture_begin();
    allocate_async(64 * MIB);
    capture_end(flags);
    answer("first_launch", graph_launch());
    synchronise();
    answer("second_launch", graph_launch());
    synchronise();
    graph_reserved("reserved");
    taken("card");
}
static void graph_launched_twice(void) {
    graph_kept(0);
}
static void graph_auto_free(void) {
    graph_kept(AUTO_FREE);
}
static void graph_memset(void) {
    FIND(cuMemsetD8Async, 3020, (pointer, unsigned char, size_t, void *));
    capture_begin();
    pointer memory = allocate_async(MIB);
    answer("memset_of_captured_memory", cuMemsetD8Async(memory, 1, MIB, stream));
    answer("free", release_async(memory));
    capture_end(0);
    answer("launch", graph_launch());
    synchronise();
}

static void *ask_while_capturing(void *unused) {
    FIND(cuCtxSetCurrent, 4000, (void *));
    FIND(cuEventCreate, 2000, (void **, unsigned int));
    FIND(cuEventRecord, 2000, (void *, void *));
    FIND(cuEventQuery, 2000, (void *));
    FIND(cuStreamCreate, 2000, (void **, unsigned int));
    FIND(cuMemAlloc, 3020, (pointer *, size_t));
    void *event, *other;
    pointer memory;
    (void)unused;
    must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    answer("create_stream", cuStreamCreate(&other, 1));
    answer("create_event", cuEventCreate(&event, 0));
    answer("record_event", cuEventRecord(event, other));
    answer("query_event", cuEventQuery(event) == 600 ? 0 : cuEventQuery(event)); /* 600: not ready yet */
    answer("alloc", cuMemAlloc(&memory, MIB));
    return NULL;
}
static void beside_global_capture(void) {
    FIND(cuStreamBeginCapture, 10010, (void *, int));
    FIND(cuStreamEndCapture, 10000, (void *, void **));
    pthread_t thread;
    must(cuStreamBeginCapture(stream, GLOBAL), "cuStreamBeginCapture");
    must(pthread_create(&thread, NULL, ask_while_capturing, NULL), "pthread_create");
    pthread_join(thread, NULL);
    answer("end_of_capture", cuStreamEndCapture(stream, &graph));
}

static void exported(void) {
    FIND(cuMemCreate, 10020, (unsigned long long *, size_t, const void *, unsigned long long));
    FIND(cuMemExportToShareableHandle, 10020, (void *, unsigned long long, int, unsigned long long));
    FIND(cuMemRelease, 10020, (unsigned long long));
    struct memory_properties properties = {.type = PINNED, .handle_types = BY_DESCRIPTOR, .location = {DEVICE, device}};
    unsigned long long handle;
    int descriptor = -1;
    must(cuMemCreate(&handle, 64 * MIB, &properties, 0), "cuMemCreate");
    answer("export", cuMemExportToShareableHandle(&descriptor, handle, BY_DESCRIPTOR, 0));
    answer("release", cuMemRelease(handle));
    taken("released_with_descriptor_open");
    close(descriptor);
    taken("descriptor_closed");
}
/* Each step's name says what holds the memory then, and nothing else does. */
static void exported_copies(void) {
    FIND(cuMemCreate, 10020, (unsigned long long *, size_t, const void *, unsigned long long));
    FIND(cuMemExportToShareableHandle, 10020, (void *, unsigned long long, int, unsigned long long));
    FIND(cuMemImportFromShareableHandle, 10020, (unsigned long long *, void *, int));
    FIND(cuMemRelease, 10020, (unsigned long long));
    struct memory_properties properties = {.type = PINNED, .handle_types = BY_DESCRIPTOR, .location = {DEVICE, device}};
    unsigned long long handle, imported = 0;
    int first = -1;
    must(cuMemCreate(&handle, 64 * MIB, &properties, 0), "cuMemCreate");
    must(cuMemExportToShareableHandle(&first, handle, BY_DESCRIPTOR, 0), "cuMemExportToShareableHandle");
    int second = dup(first);
    answer("release", cuMemRelease(handle));
    close(first);
    taken("a_copy_of_the_descriptor");
    answer("import", cuMemImportFromShareableHandle(&imported, (void *)(uintptr_t)second, BY_DESCRIPTOR));
    close(second);
    taken("an_import");
    answer("release_of_import", cuMemRelease(imported));
    taken("nothing");
}
static void bound_to_multicast(void) {
    FIND(cuMemCreate, 10020, (unsigned long long *, size_t, const void *, unsigned long long));
    FIND(cuMemRelease, 10020, (unsigned long long));
    FIND(cuMulticastCreate, 12010, (unsigned long long *, const void *));
    FIND(cuMulticastAddDevice, 12010, (unsigned long long, int));
    FIND(cuMulticastBindMem, 12010,
         (unsigned long long, size_t, unsigned long long, size_t, size_t, unsigned long long));
    struct memory_properties properties = {.type = PINNED, .handle_types = BY_DESCRIPTOR, .location = {DEVICE, device}};
    struct {
        unsigned int devices;
        size_t size;
        unsigned long long handle_types, flags;
    } wanted = {1, 64 * MIB, BY_DESCRIPTOR, 0};
    unsigned long long memory, multicast = 0;
    int result = cuMulticastCreate(&multicast, &wanted);
    answer("create_with_one_device", result);
    if (result)
        return;
    answer("add_device", cuMulticastAddDevice(multicast, device));
    must(cuMemCreate(&memory, 64 * MIB, &properties, 0), "cuMemCreate");
    answer("bind", cuMulticastBindMem(multicast, 0, memory, 0, 64 * MIB, 0));
    answer("release", cuMemRelease(memory));
    taken("bound");
    answer("release_of_multicast", cuMemRelease(multicast));
    taken("nothing");
}
static void mapped(void) {
    FIND(cuMemCreate, 10020, (unsigned long long *, size_t, const void *, unsigned long long));
    FIND(cuMemAddressReserve, 10020, (pointer *, size_t, size_t, pointer, unsigned long long));
    FIND(cuMemMap, 10020, (pointer, size_t, size_t, unsigned long long, unsigned long long));
    FIND(cuMemUnmap, 10020, (pointer, size_t));
    FIND(cuMemRelease, 10020, (unsigned long long));
    struct memory_properties properties = {.type = PINNED, .location = {DEVICE, device}};
    unsigned long long handle;
    pointer at;
    must(cuMemCreate(&handle, 64 * MIB, &properties, 0), "cuMemCreate");
    must(cuMemAddressReserve(&at, 64 * MIB, 0, 0, 0), "cuMemAddressReserve");
    answer("map", cuMemMap(at, 64 * MIB, 0, handle, 0));
    answer("release", cuMemRelease(handle));
    taken("released_but_mapped");
    answer("unmap", cuMemUnmap(at, 64 * MIB));
    taken("unmapped");
}

static void managed(void) {
    FIND(cuMemAllocManaged, 6000, (pointer *, size_t, unsigned int));
    FIND(cuMemsetD8, 3020, (pointer, unsigned char, size_t));
    pointer memory;
    must(cuMemAllocManaged(&memory, 64 * MIB, 1), "cuMemAllocManaged");
    taken("untouched");
    must(cuMemsetD8(memory, 1, 64 * MIB), "cuMemsetD8");
    taken("set_on_the_card");
}
static void array(void) {
    FIND(cuArray3DCreate, 3020, (void **, const void *));
    struct shape shape = {.width = 1000, .height = 1000, .format = 0x20, .channels = 4};
    void *made;
    must(cuArray3DCreate(&made, &shape), "cuArray3DCreate");
    taken("1000_by_1000_of_16_bytes");
}
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

/* Ends before its child, which was forked with all of the driver's descriptors and touches none. */
static void killed_with_a_child(void) {
    enum { SETTLE_MS = 500 };
    int ready[2];
    pid_t child = 0;
    must(pipe(ready), "pipe");
    pid_t victim = fork();
    if (victim == 0) {
        char number[16];
        snprintf(number, sizeof number, "%d", ready[1]);
        execl("/proc/self/exe", "guesses", "victim", number, (char *)NULL);
        _exit(1);
    }
    close(ready[1]);
    if (read(ready[0], &child, sizeof child) != sizeof child)
        must(1, "the victim");
    kill(victim, SIGKILL);
    waitpid(victim, NULL, 0);
    nanosleep(&(struct timespec){.tv_nsec = SETTLE_MS * 1000000L}, NULL);
    taken("its_child_alive");
    kill(child, SIGKILL);
    nanosleep(&(struct timespec){.tv_nsec = SETTLE_MS * 1000000L}, NULL);
    taken("its_child_killed_too");
}
static void be_killed(int ready) {
    allocate(64 * MIB);
    pid_t child = fork();
    if (child == 0)
        for (;;)
            pause();
    if (write(ready, &child, sizeof child) == sizeof child)
        for (;;)
            pause();
}

static const struct {
    const char *name;
    void (*ask)(void);
} questions[] = {
    {"small_allocations", small_allocations},
    {"odd_sizes", odd_sizes},
    {"nothing", nothing},
    {"mixed_frees", mixed_frees},
    {"async_pool", async_pool},
    {"pool_destroyed", pool_destroyed},
    {"graph_chain", graph_chain},
    {"graph_together", graph_together},
    {"graph_launched_twice", graph_launched_twice},
    {"graph_auto_free", graph_auto_free},
    {"graph_memset", graph_memset},
    {"beside_global_capture", beside_global_capture},
    {"exported", exported},
    {"exported_copies", exported_copies},
    {"bound_to_multicast", bound_to_multicast},
    {"mapped", mapped},
    {"managed", managed},
    {"array", array},
    {"streams", streams},
    {"heap", heap},
    {"second_context", second_context},
    {"resolver", resolver},
    {"event_steps", event_steps},
    {"launch_queue", launch_queue},
    {"killed_with_a_child", killed_with_a_child},
};
enum { QUESTIONS = sizeof questions / sizeof *questions };

static void prepare(void) {
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

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "victim") == 0) {
        prepare();
        be_killed(atoi(argv[2]));
        return 1;
    }
    for (int at = 0; at < QUESTIONS && argc == 2; at++) {
        if (strcmp(argv[1], "list") == 0)
            puts(questions[at].name);
        if (strcmp(argv[1], questions[at].name) != 0)
            continue;
        prepare();
        questions[at].ask();
        return 0;
    }
    return argc == 2 && strcmp(argv[1], "list") == 0 ? 0 : 64;
}
