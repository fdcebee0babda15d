/*
 * What one process has on the modelled cards: contexts, streams, events, code, memory. One mutex guards it all;
 * it is never held while waiting, nor while a tenant's host function runs.
 *
 * Work has no instructions: a kernel is a length in GPU time, taken from its name (`spin_5ms`, `gemm_40us`), else,
 * if the name ends in `_us` or is `spin`, from its first parameter (32 bits, microseconds), else from the
 * configuration. Each stream has a tail on the process's axis of GPU time (see card.h); an operation starts at
 * the tail, or later if it waits for an event or for the legacy stream. A kernel with at least as many blocks as
 * the card has SMs fills the card and runs alone; smaller ones of different streams overlap for nothing.
 * Operations behind a host function (or behind an event that such an operation will record) are held back in the
 * stream's queue until the function has run on the helper thread; all others are placed at once.
 *
 * Contents: device memory is host memory that is there when touched. Copies and sets happen at the call, and only
 * up to 64 MiB of one operation is really moved; setting to zero is free.
 */
#ifndef STANDIN_PROCESS_H
#define STANDIN_PROCESS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "card.h"
#include "cu.h"

/* A launch waits while this many are pending, as with the real driver. */
enum { LAUNCH_QUEUE = 1024, SHARE_NAME = 40 };

enum kind { LINEAR, MANAGED, HOST, REGISTERED, ASYNC, IPC, MAPPED, GLOBAL, GRAPH, IMPORTED };

struct device {
    int ordinal;
    struct hold hold;
    struct context *primary, *contexts;
    unsigned int primary_count, primary_flags;
    int64_t alone_until, placed_until; /* on the process's axis: last kernel that fills the card, last of all */
    int64_t pending[LAUNCH_QUEUE];     /* ends of the last launches: a driver's queue is that long */
    uint64_t launches;
    int64_t graph_used, graph_reserved, graph_used_high, graph_reserved_high;
    struct graph_run *graph_runs; /* launches with memory that may not have ended */
    struct pool *default_pool, *current_pool, *pools;
    struct block *blocks; /* 2 MiB blocks that small allocations share */
};

/* Operations that a stream holds back. */
struct operation {
    enum { OP_WORK, OP_HOST, OP_RECORD, OP_WAIT, OP_OTHER_CARD, OP_WORD } kind;
    struct operation *next;
    int64_t length; /* OP_OTHER_CARD: the place on that card's axis */
    struct device *other;
    bool alone;
    struct event *event;
    uint64_t generation;
    CUhostFn fn;
    CUstreamCallback callback;
    void *data;
    struct word { /* OP_WORD: memory that the stream waits for, or writes */
        uint64_t at, value;
        unsigned int flags;
        bool wide, is_write;
    } word;
};

struct stream {
    struct context *context;
    struct stream *next;
    const void *thread; /* whose null stream it is; NULL: it was created */
    int64_t tail;
    uint64_t id;
    unsigned int flags;
    int priority;
    struct operation *held, **held_end;
    /* capture */
    int capture_status, capture_mode;
    uint64_t capture_id;
    pthread_t capture_thread;
    struct graph *capture;
    bool capture_owned; /* BeginCapture made the graph, rather than BeginCaptureToGraph */
    bool capture_origin;
    struct node **capture_deps;
    size_t capture_dep_count;
};

enum { EVENT_DISABLE_TIMING = 2 };
struct event {
    struct context *context;
    struct event *next;
    unsigned int flags;
    uint64_t generation, placed; /* how often recorded, and up to which recording its place is known */
    int64_t p, not_before;
    int64_t happened_at;      /* once that was looked up; 0: not yet */
    struct stream *capturing; /* recorded in a capture: the stream, and the nodes it stood behind */
    uint64_t capture_id;
    struct node **capture_deps;
    size_t capture_dep_count;
};

struct context {
    struct device *device;
    struct context *next;
    uint64_t id;
    unsigned int flags, version, attached;
    int alive;
    struct stream legacy, *streams;
    struct event *events;
    struct module *modules;
    int64_t blocking_tail; /* last operation of any stream that the legacy stream waits for */
    int64_t limit[16];
    int streams_now, streams_most;
    int64_t local_bytes; /* the most a thread that a kernel has needed */
    uint32_t peers;
    int cache_config;
    struct context *primary; /* of a green context: where everything that it is used for lies */
};

struct function {
    struct module *module;
    struct function *next;
    char *name;
    int64_t fixed_ns; /* -1: the first parameter says */
    int block[3], attributes[32];
    bool loaded, launched;
};

struct module {
    struct context *context;
    struct module *next;
    struct function *functions;
    char *ptx;
    bool is_library; /* outlives the contexts that it is loaded into */
    int64_t charged;
};

struct pool {
    struct device *device;
    struct pool *next;
    int64_t reserved, reserved_high, used, used_high, threshold, max_bytes;
    int location_type, handle_types, flags[4];
    bool implicit, destroyed;
};

/* An allocation or mapping, found by any address in it. */
struct memory {
    uintptr_t base;
    size_t bytes, backed;
    enum kind kind;
    struct device *device;
    struct context *context;
    struct pool *pool;
    struct block *block;
    uint64_t id;
    unsigned int flags;
    int64_t resident; /* of managed memory */
    size_t offset;    /* of memory opened from another process: where in its file it begins */
    char share[SHARE_NAME];
};

/* The pages behind an allocation, and the name of the file that they are in once another process may have them. */
struct backing {
    char *base;
    size_t bytes;
    char *share;
};

struct process {
    pthread_mutex_t lock;
    pthread_cond_t progress;
    bool ready, forked, ended;
    int devices;
    struct device device[MAX_CARDS];
    struct pool *host_pool;
    uint64_t next_id;
    bool helper_started;
};

extern struct process process;
extern __thread bool standin_per_thread;

/* process.c */
void process_lock(void);
void process_unlock(void);
struct context *context_current(void);
/* Takes the process lock, unless another thread has destroyed the context since it was found. */
bool context_lock(const struct context *context);
struct device *device_of(CUdevice ordinal);
struct context *context_primary(struct device *device);
void context_destroy(struct context *context);
/* One more stream: memory for the most that there were at once, which stays. False: the card has not that much. */
bool context_stream(struct context *context);
/* What its streams took goes with it. */
void context_streams_end(struct context *context);
/* What a context takes by itself: begun (1), or given back (-1). */
bool context_charge(struct device *device, int sign);
enum { STACK = 1024 }; /* that a context has a thread from the start */
/* Stacks or local memory a thread, whichever is larger, for every thread that can be resident: at the setting of the
 * one, at the first launch of a kernel that needs more of the other. False: the card has not that much. */
bool context_threads(struct context *context, int64_t stack, int64_t local);
/* Charge and give back; the process lock must be held. */
bool device_charge(struct device *device, int64_t bytes);
/* NVML counts so much more for this process, although the card has it once. */
void device_shares(struct device *device, int64_t bytes);
int64_t granules(int64_t bytes);

/* exec.c: the process lock must be held, except where "unlocked" is said */
struct stream *stream_of(struct context *context, CUstream handle);
void exec_call(int64_t ns); /* unlocked: what a call of the driver takes its caller */
bool exec_is_idle(struct stream *stream);
void exec_work(struct stream *stream, int64_t length, bool alone);
int64_t exec_place(struct stream *stream, int64_t after, int64_t length, bool alone); /* returns its end */
int64_t exec_begin(struct stream *stream); /* the earliest place of the next operation */
void exec_finish(struct stream *stream, int64_t end);
void exec_hold(struct stream *stream, struct operation operation);
int64_t exec_tail(const struct stream *stream);
bool exec_reached(struct device *device, int64_t p);
int64_t exec_wall(struct device *device, int64_t p);
void exec_record(struct event *event, struct stream *stream);
void exec_forget(struct stream *stream);
void exec_forget_event(struct event *event);
void exec_stream_wait(struct stream *stream);     /* unlocked */
void exec_device_wait(struct device *device);     /* unlocked */
void exec_wait(struct device *device, int64_t p); /* unlocked */
void exec_queue_wait(struct device *device);      /* unlocked: room for one more launch */
bool exec_event_wait(struct event *event);        /* unlocked */

/* code.c */
int64_t kernel_ns(const struct function *function, void **params);
bool kernel_alone(const struct context *context, const unsigned int grid[3]);
bool function_load(struct function *function);
/* What its launch in this context takes, with the process lock held; false if the card has not that much. */
bool function_local(struct context *context, const struct function *function);
void module_free(struct module *module);
void module_detach(struct module *module);

/* map.c: the process lock must be held */
struct memory *map_find(uintptr_t address);
struct memory *map_add(struct memory memory);
void map_remove(uintptr_t base);
struct memory *map_of_pool(const struct pool *pool);
struct memory *map_of_graphs(const struct device *device);
struct memory *map_owned(const struct context *context);
void *map_pages(size_t bytes);

/* mem.c, pool.c, array.c */
CUresult memory_alloc(struct context *context, size_t bytes, enum kind kind, uintptr_t *out);
void memory_release(struct memory *memory);
void managed_set(struct memory *memory, size_t bytes); /* by the card */
struct backing memory_backing(struct memory *memory);
void forget_share(const char *name);
void pool_sync(struct device *device);
CUresult pool_alloc(struct pool *pool, size_t bytes, uintptr_t *out);
struct pool *pool_default(struct device *device);
void pool_release(struct memory *memory);
void arrays_free(struct context *context);
char *array_row(CUarray array, size_t x, size_t y, size_t z, size_t *left);
CUresult copy_rows(const CUDA_MEMCPY3D *shape);

/* vmm.c */
void physical_drop_unheld(void);

/* capture.c, graph.c */
bool capturing(const struct stream *stream);
bool capture_any(void);
CUresult capture_check(struct stream *stream);
/* True, and the captures that are against it are spoilt: the call may not be made now. Takes the process lock. */
bool capture_prohibits(void);
CUresult capture_add(struct stream *stream, int type, const CUgraphNodeParams *params);
CUresult capture_timed(struct stream *stream, const CUgraphNodeParams *params, int64_t length);
CUresult capture_alloc(struct stream *stream, CUgraphNodeParams *params);
CUresult capture_mark(struct event *event, struct stream *stream);
CUresult capture_join(struct stream *stream, struct event *event);
struct graph *graph_new(void);
void graph_free(struct graph *graph);
CUresult node_add(struct graph *graph, struct node *const *deps, size_t count, const CUgraphNodeParams *params,
                  int64_t length, struct node **out);
bool nodes_cover(const struct graph *graph, struct node *const *ends, size_t count, uint64_t from_id);

/* A model function that needs a context begins with this. */
#define NEED_CONTEXT(name)                                                                                             \
    struct context *name = context_current();                                                                          \
    if (!name)                                                                                                         \
    return CUDA_ERROR_INVALID_CONTEXT

#endif
