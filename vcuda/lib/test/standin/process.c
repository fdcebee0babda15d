/* The process as a whole: start, gate of every call, injected failures, contexts. */
#define _GNU_SOURCE
#include "process.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "generated.h"
#include "graph.h"
#include "trace.h"

struct process process = {.lock = PTHREAD_MUTEX_INITIALIZER, .progress = PTHREAD_COND_INITIALIZER};
__thread bool standin_per_thread;
/* Not 0: calls must pass standin_enter, because cuInit has not run or failures are injected. */
int standin_gate = 1;

static __thread struct {
    struct context *stack[16];
    int depth;
} current;

/* ---- failures on demand --------------------------------------------------------------------------------- */

enum { MAX_FAILURES = 16 };
static struct {
    char name[64];
    int code, nth;
    int calls;
} failure[MAX_FAILURES];
static int failures;

static void read_failures(void) {
    const char *text = config_text("fail");
    for (; text && *text && failures < MAX_FAILURES; text += strcspn(text, ","), text += *text == ',') {
        int code = 0, nth = 0, got = sscanf(text, "%63[^=,]=%d@%d", failure[failures].name, &code, &nth);
        if (got < 2)
            continue;
        failure[failures].code = code;
        failure[failures++].nth = got == 3 ? nth : 0;
    }
}

static pthread_once_t failures_once = PTHREAD_ONCE_INIT;

int standin_injected(const char *name) {
    pthread_once(&failures_once, read_failures);
    for (int at = 0; at < failures; at++) {
        if (strcmp(failure[at].name, name) != 0)
            continue;
        int call = __atomic_add_fetch(&failure[at].calls, 1, __ATOMIC_RELAXED);
        if (failure[at].nth == 0 || failure[at].nth == call)
            return failure[at].code;
    }
    return 0;
}

/* These answer before cuInit. */
static bool works_before_init(const char *name) {
    static const char *const early[] = {
        "cuInit",         "cuGetProcAddress", "cuGetProcAddress_v2", "cuDriverGetVersion",
        "cuGetErrorName", "cuGetErrorString", "cuGetExportTable"};
    for (size_t at = 0; at < sizeof early / sizeof early[0]; at++)
        if (strcmp(early[at], name) == 0)
            return true;
    return strncmp(name, "cuGetProcAddress", 16) == 0;
}

int standin_enter(const char *name) {
    trace("call %s", name);
    int code = standin_injected(name);
    if (code)
        return code;
    if (__atomic_load_n(&process.ended, __ATOMIC_ACQUIRE))
        return CUDA_ERROR_DEINITIALIZED;
    if (process.forked)
        return works_before_init(name) && strcmp(name, "cuInit") != 0 ? 0 : CUDA_ERROR_NOT_INITIALIZED;
    if (!__atomic_load_n(&process.ready, __ATOMIC_ACQUIRE) && !works_before_init(name))
        return CUDA_ERROR_NOT_INITIALIZED;
    return 0;
}

int standin_unmodelled(const char *name) {
    int code = standin_enter(name);
    return code ? code : CUDA_ERROR_NOT_SUPPORTED;
}

/* ---- start ------------------------------------------------------------------------------------------------ */

void process_lock(void) {
    pthread_mutex_lock(&process.lock);
}
void process_unlock(void) {
    pthread_mutex_unlock(&process.lock);
}

/* As with the real driver, CUDA cannot be used in a child of fork once the parent has initialised it. */
static void in_child(void) {
    process.forked = true;
    standin_gate = 1;
}

/* What the process still calls while it exits is refused; what it holds goes with it. */
static void at_exit(void) {
    __atomic_store_n(&process.ended, true, __ATOMIC_RELEASE); /* other threads may still be at work */
    __atomic_store_n(&standin_gate, 1, __ATOMIC_RELEASE);
}

/* A card of the machine by what CUDA_VISIBLE_DEVICES says: an index, a UUID or the beginning of one. */
static int visible_card(const struct config *config, const char *word) {
    if (strncmp(word, "GPU-", 4) == 0 || strncmp(word, "MIG-", 4) == 0) {
        for (int at = 0; at < config->cards; at++)
            if (strncmp(config->card[at].uuid_text + 4, word + 4, strlen(word + 4)) == 0)
                return at;
        return -1;
    }
    char *end;
    long index = strtol(word, &end, 10);
    return end != word && *end == '\0' && index >= 0 && index < config->cards ? (int)index : -1;
}

/* The list ends, as in the real driver, at the first entry that names no card; a card named twice ends it all. */
static int choose_cards(const struct config *config, int chosen[MAX_CARDS]) {
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    int count = 0;
    if (!text) {
        for (; count < config->cards; count++)
            chosen[count] = count;
        return count;
    }
    while (*text && count < MAX_CARDS) {
        char word[64];
        size_t length = strcspn(text, ",");
        snprintf(word, sizeof word, "%.*s", (int)length, text);
        int card = visible_card(config, word);
        if (card < 0)
            break;
        for (int at = 0; at < count; at++)
            if (chosen[at] == card)
                return 0;
        chosen[count++] = card;
        text += length + (text[length] == ',');
    }
    return count;
}

/* What some drivers do inside cuInit: look their own symbols up again, through whatever dlsym is in force. */
static void call_back(void) {
    void *self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    CUresult (*table)(const void **, const CUuuid *) = NULL;
    if (self)
        *(void **)&table = dlsym(self, "cuGetExportTable");
    static const CUuuid anything = {{0x6b, 0xd5}};
    const void *found = NULL;
    if (table)
        table(&found, &anything);
    CUresult (*count)(int *) = NULL;
    if (self)
        *(void **)&count = dlsym(self, "cuDriverGetVersion");
    int version;
    if (count)
        count(&version);
}

static CUresult start(void) {
    const struct config *config = config_read();
    int chosen[MAX_CARDS], count = choose_cards(config, chosen);
    if (count == 0)
        return CUDA_ERROR_NO_DEVICE;
    for (int at = 0; at < count; at++) {
        struct device *device = &process.device[at];
        device->ordinal = at;
        if (config->card[chosen[at]].lost)
            return CUDA_ERROR_UNKNOWN;
        if (!card_open(&device->hold, &config->card[chosen[at]]))
            return CUDA_ERROR_OPERATING_SYSTEM;
    }
    process.devices = count;
    pthread_atfork(NULL, NULL, in_child);
    atexit(at_exit);
    return CUDA_SUCCESS;
}

CUresult model_cuInit(unsigned int flags) {
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (config_read()->callback)
        call_back();
    process_lock();
    CUresult result = process.ready ? CUDA_SUCCESS : start();
    if (result == CUDA_SUCCESS && !process.ready) {
        __atomic_store_n(&process.ready, true, __ATOMIC_RELEASE);
        pthread_once(&failures_once, read_failures);
        __atomic_store_n(&standin_gate, failures > 0 || trace_wanted(), __ATOMIC_RELEASE);
    }
    process_unlock();
    return result;
}

CUresult model_cuDriverGetVersion(int *version) {
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = standin_cuda_version;
    return CUDA_SUCCESS;
}

/* ---- contexts --------------------------------------------------------------------------------------------- */

struct device *device_of(CUdevice ordinal) {
    return ordinal >= 0 && ordinal < process.devices ? &process.device[ordinal] : NULL;
}

struct context *context_current(void) {
    struct context *context = current.depth ? current.stack[current.depth - 1] : NULL;
    if (!context || !__atomic_load_n(&context->alive, __ATOMIC_ACQUIRE))
        return NULL;
    return context->primary ? context->primary : context;
}

bool context_lock(const struct context *context) {
    process_lock();
    if (context->alive)
        return true;
    process_unlock();
    return false;
}

/* The primary context's handle is the same all the process long, whether the context exists or not. */
struct context *context_primary(struct device *device) {
    if (!device->primary && (device->primary = calloc(1, sizeof *device->primary)))
        device->primary->device = device;
    return device->primary;
}

/* The malloc heap of kernels that a context has from the start. */
enum { HEAP = 8 << 20 };

static bool context_begin(struct context *context, unsigned int flags, unsigned int version) {
    struct device *device = context->device;
    if (!context_charge(device, 1))
        return false;
    memset(context, 0, sizeof *context);
    context->device = device;
    context->flags = flags;
    context->version = version;
    context->id = ++process.next_id;
    context->legacy.context = context;
    context->legacy.held_end = &context->legacy.held;
    context->limit[0] = STACK;
    context->limit[1] = 1 << 20;
    context->limit[2] = HEAP;
    context->limit[4] = 2048;
    context->next = device->contexts;
    device->contexts = context;
    __atomic_store_n(&context->alive, 1, __ATOMIC_RELEASE);
    return true;
}

static void free_streams(struct context *context) {
    while (context->streams) {
        struct stream *stream = context->streams;
        context->streams = stream->next;
        exec_forget(stream);
        free(stream);
    }
    exec_forget(&context->legacy);
    while (context->events) {
        struct event *event = context->events;
        context->events = event->next;
        free(event->capture_deps);
        free(event);
    }
}

/* Without contexts and memory the process is none of the card's any more; its axis of time starts anew with it. */
static void leave_if_idle(struct device *device) {
    struct hold *hold = &device->hold;
    card_lock(hold);
    bool idle = !device->contexts && hold->card->slot[hold->mine].used_bytes == 0;
    if (idle)
        card_leave(hold);
    card_unlock(hold);
    if (!idle)
        return;
    device->alone_until = device->placed_until = 0;
    device->launches = 0;
    memset(device->pending, 0, sizeof device->pending);
}

/* Everything the context owned goes; its memory stays allocated, because threads may have it as current. */
void context_destroy(struct context *context) {
    struct device *device = context->device;
    __atomic_store_n(&context->alive, 0, __ATOMIC_RELEASE);
    arrays_free(context);
    for (struct memory *memory; (memory = map_owned(context));)
        memory_release(memory);
    while (context->modules)
        (context->modules->is_library ? module_detach : module_free)(context->modules);
    free_streams(context);
    context_threads(context, STACK, 0);
    context_streams_end(context);
    for (struct context **at = &device->contexts; *at; at = &(*at)->next)
        if (*at == context) {
            *at = context->next;
            break;
        }
    if (!device->contexts)
        graph_memory_forget(device); /* what pools hold stays: they are the device's */
    context_charge(device, -1);
    leave_if_idle(device);
}

static CUresult push(struct context *context) {
    if (current.depth == (int)(sizeof current.stack / sizeof current.stack[0]))
        return CUDA_ERROR_INVALID_CONTEXT;
    current.stack[current.depth++] = context;
    return CUDA_SUCCESS;
}

static CUresult create_current(CUcontext *out, unsigned int flags, CUdevice ordinal, unsigned int version) {
    struct device *device = device_of(ordinal);
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    struct context *context = calloc(1, sizeof *context);
    if (!context)
        return CUDA_ERROR_OUT_OF_MEMORY;
    context->device = device;
    process_lock();
    bool begun = context_begin(context, flags, version);
    process_unlock();
    if (!begun) {
        free(context);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = context;
    return push(context);
}

CUresult model_cuCtxCreate_v2(CUcontext *out, unsigned int flags, CUdevice device) {
    return create_current(out, flags, device, 3020);
}
ALIAS(cuCtxCreate, cuCtxCreate_v2);
CUresult model_cuCtxCreate_v3(CUcontext *out, void *affinity, int count, unsigned int flags, CUdevice device) {
    if (count > 0 && affinity)
        return CUDA_ERROR_NOT_SUPPORTED; /* execution affinity exists under MPS only */
    return create_current(out, flags, device, 11040);
}
CUresult model_cuCtxCreate_v4(CUcontext *out, void *params, unsigned int flags, CUdevice device) {
    (void)params;
    return create_current(out, flags, device, 12050);
}

CUresult model_cuCtxDestroy_v2(CUcontext context) {
    if (!context || !context->alive || context->primary || context == context->device->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    exec_device_wait(context->device);
    if (current.depth && current.stack[current.depth - 1] == context)
        current.depth--;
    process_lock();
    context_destroy(context);
    process_unlock();
    return CUDA_SUCCESS;
}
ALIAS(cuCtxDestroy, cuCtxDestroy_v2);

CUresult model_cuCtxAttach(CUcontext *out, unsigned int flags) {
    NEED_CONTEXT(context);
    if (!out || flags)
        return CUDA_ERROR_INVALID_VALUE;
    __atomic_fetch_add(&context->attached, 1, __ATOMIC_RELAXED);
    *out = context;
    return CUDA_SUCCESS;
}
CUresult model_cuCtxDetach(CUcontext context) {
    if (!context || !current.depth || current.stack[current.depth - 1] != context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!context->attached)
        return model_cuCtxDestroy_v2(context);
    __atomic_fetch_sub(&context->attached, 1, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

CUresult model_cuCtxPushCurrent_v2(CUcontext context) {
    return context && context->alive ? push(context) : CUDA_ERROR_INVALID_CONTEXT;
}
ALIAS(cuCtxPushCurrent, cuCtxPushCurrent_v2);
CUresult model_cuCtxPopCurrent_v2(CUcontext *out) {
    if (!current.depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    struct context *context = current.stack[--current.depth];
    if (out)
        *out = context;
    return CUDA_SUCCESS;
}
ALIAS(cuCtxPopCurrent, cuCtxPopCurrent_v2);
CUresult model_cuCtxSetCurrent(CUcontext context) {
    if (context && !context->alive)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (current.depth)
        current.depth--;
    return context ? push(context) : CUDA_SUCCESS;
}
CUresult model_cuCtxGetCurrent(CUcontext *out) {
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = current.depth ? current.stack[current.depth - 1] : NULL;
    return CUDA_SUCCESS;
}

CUresult model_cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice ordinal) {
    struct device *device = device_of(ordinal);
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    process_lock();
    struct context *context = context_primary(device);
    bool begun = context && (context->alive || context_begin(context, device->primary_flags, 3020));
    if (begun) {
        device->primary_count++;
        *out = context;
    }
    process_unlock();
    return begun ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void drop_primary(struct device *device) {
    device->primary_count = 0;
    if (device->primary && device->primary->alive)
        context_destroy(device->primary);
}

CUresult model_cuDevicePrimaryCtxRelease_v2(CUdevice ordinal) {
    struct device *device = device_of(ordinal);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!device->primary_count)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (device->primary_count == 1)
        exec_device_wait(device);
    process_lock();
    if (device->primary_count && --device->primary_count == 0)
        drop_primary(device);
    process_unlock();
    return CUDA_SUCCESS;
}
ALIAS(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2);

CUresult model_cuDevicePrimaryCtxReset_v2(CUdevice ordinal) {
    struct device *device = device_of(ordinal);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    exec_device_wait(device);
    process_lock();
    drop_primary(device);
    process_unlock();
    return CUDA_SUCCESS;
}
ALIAS(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2);

CUresult model_cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned int flags) {
    struct device *device = device_of(ordinal);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    device->primary_flags = flags;
    return CUDA_SUCCESS;
}
ALIAS(cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2);

CUresult model_cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned int *flags, int *active) {
    struct device *device = device_of(ordinal);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (flags)
        *flags = device->primary_flags;
    if (active)
        *active = device->primary && device->primary->alive;
    return CUDA_SUCCESS;
}
