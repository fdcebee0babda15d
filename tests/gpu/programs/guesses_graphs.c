/* Memory of graphs, and what a capture forbids others: see guesses.h. */
#include "guesses.h"

#include <pthread.h>

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

/* Each of these in a capture of its own: what does the call of another thread return, and the end of the capture? */
static pointer memory_before;
static void *event_before, *stream_before;
static int (*unsafe)(void);
static int unsafe_result;
static int call_alloc_host(void) {
    FIND(cuMemAllocHost, 3020, (void **, size_t));
    void *memory;
    return cuMemAllocHost(&memory, MIB);
}
static int call_free(void) {
    return release(memory_before);
}
static int call_event_synchronize(void) {
    FIND(cuEventSynchronize, 2000, (void *));
    return cuEventSynchronize(event_before);
}
static int call_stream_query(void) {
    FIND(cuStreamQuery, 2000, (void *));
    return cuStreamQuery(stream_before);
}
static int call_stream_synchronize(void) {
    FIND(cuStreamSynchronize, 2000, (void *));
    return cuStreamSynchronize(stream_before);
}
static int call_memory_info(void) {
    FIND(cuMemGetInfo, 3020, (size_t *, size_t *));
    size_t left, total;
    return cuMemGetInfo(&left, &total);
}
static int call_elapsed(void) {
    FIND(cuEventElapsedTime, 2000, (float *, void *, void *));
    float elapsed;
    return cuEventElapsedTime(&elapsed, event_before, event_before);
}
static int call_trim(void) {
    FIND(cuDeviceGetDefaultMemPool, 11020, (void **, int));
    FIND(cuMemPoolTrimTo, 11020, (void *, size_t));
    void *pool;
    must(cuDeviceGetDefaultMemPool(&pool, device), "cuDeviceGetDefaultMemPool");
    return cuMemPoolTrimTo(pool, 0);
}
static void *call_unsafe(void *unused) {
    FIND(cuCtxSetCurrent, 4000, (void *));
    (void)unused;
    must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    unsafe_result = unsafe();
    return NULL;
}
static void prohibited_beside_capture(void) {
    static const struct {
        const char *name;
        int (*call)(void);
    } calls[] = {
        {"alloc_host", call_alloc_host},
        {"free", call_free},
        {"event_synchronize", call_event_synchronize},
        {"stream_query", call_stream_query},
        {"stream_synchronize", call_stream_synchronize},
        {"memory_info", call_memory_info},
        {"elapsed", call_elapsed},
        {"trim_of_a_pool", call_trim},
    };
    FIND(cuEventCreate, 2000, (void **, unsigned int));
    FIND(cuEventRecord, 2000, (void *, void *));
    FIND(cuStreamCreate, 2000, (void **, unsigned int));
    FIND(cuStreamBeginCapture, 10010, (void *, int));
    FIND(cuStreamEndCapture, 10000, (void *, void **));
    memory_before = allocate(MIB);
    must(cuStreamCreate(&stream_before, 1), "cuStreamCreate");
    must(cuEventCreate(&event_before, 0), "cuEventCreate");
    must(cuEventRecord(event_before, stream_before), "cuEventRecord");
    for (size_t at = 0; at < sizeof calls / sizeof *calls; at++) {
        pthread_t thread;
        char name[64];
        unsafe = calls[at].call;
        must(cuStreamBeginCapture(stream, GLOBAL), "cuStreamBeginCapture");
        must(pthread_create(&thread, NULL, call_unsafe, NULL), "pthread_create");
        pthread_join(thread, NULL);
        answer(calls[at].name, unsafe_result);
        snprintf(name, sizeof name, "end_after_%s", calls[at].name);
        answer(name, cuStreamEndCapture(stream, &graph));
    }
}

static const struct question questions[] = {
    {"graph_chain", graph_chain},
    {"graph_together", graph_together},
    {"graph_launched_twice", graph_launched_twice},
    {"graph_auto_free", graph_auto_free},
    {"graph_memset", graph_memset},
    {"beside_global_capture", beside_global_capture},
    {"prohibited_beside_capture", prohibited_beside_capture},
};

int main(int argc, char **argv) {
    return ask(questions, sizeof questions / sizeof *questions, argc, argv);
}
