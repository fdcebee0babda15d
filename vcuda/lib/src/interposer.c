/* The interposer: one exported trampoline for each name, a table they jump through, and what fills it.
 *
 * Each slot of the table starts at a binder, which asks vcuda_bind() at the first call for what belongs there: our
 * hook, the driver's function, or an answer "not found". The driver is opened then, not before: a program that
 * never calls CUDA pays for a mapping and nothing else. There is no lock: opening twice gives the same library, so
 * threads that race store the same pointers, and a constructor of the driver that calls back passes through.
 */
#include "interposer.h"

#include <errno.h>
#include <stdint.h>

#include "loader.h"
#include "paths.h"
#ifdef VCUDA_INTERPOSER_CUDA
#include "cuda/throttle.h"
#endif

/* A function that every driver has. */
#ifdef VCUDA_INTERPOSER_CUDA
#define ID_FIRST ID_cuInit
#else
#define ID_FIRST ID_nvmlInit_v2
#endif

/* The table the trampolines jump through and the exported names are in trampolines.S. */
extern void *vcuda_table[VCUDA_NAMES] __attribute__((visibility("hidden")));
extern const char vcuda_trampolines[] __attribute__((visibility("hidden")));
extern const char vcuda_trampolines_end[] __attribute__((visibility("hidden")));
void *vcuda_bind(unsigned id);

__thread unsigned vcuda_depth __attribute__((tls_model("initial-exec")));

/* Of fixed width: no relocation for the loader to do in every process. */
static const char names[VCUDA_NAMES][64] = {
#define NAME(name, index) [index] = #name,
#include "names.inc"
#undef NAME
};

static void *driver;

int vcuda_missing(void) {
    return VCUDA_MISSING;
}

static int no_driver(void) {
    return VCUDA_NO_DRIVER;
}

#ifdef VCUDA_INTERPOSER_NVML
/* The one function that returns text. */
static const char *no_text(void) {
    return "Unknown Error";
}
#endif

struct vcuda_real real = {
#define HOOK(result, name, parameters, arguments) .name = (result(*) parameters)(void (*)(void))vcuda_missing,
#define CALL(result, name, parameters) .name = (result(*) parameters)(void (*)(void))vcuda_missing,
#include "hooks.def"
#undef HOOK
#undef CALL
};

/* Where the driver lies, and where we do. */
static struct extent driver_extent, own_extent;

static void note_extent(struct extent *extent, const void *inside) {
    struct extent found = loader_extent(inside);
    __atomic_store_n(&extent->from, found.from, __ATOMIC_RELAXED);
    __atomic_store_n(&extent->to, found.to, __ATOMIC_RELAXED);
}

static bool is_in(const struct extent *extent, uintptr_t address) {
    return address >= __atomic_load_n(&extent->from, __ATOMIC_RELAXED) &&
           address < __atomic_load_n(&extent->to, __ATOMIC_RELAXED);
}

/* While a hook runs, is this the driver calling, to whom the call is not ours to answer? What is called from elsewhere
 * comes from a handler of the program's: a signal's, or a profiler's. Or there is no hook running any more: one that
 * was left by longjmp or an exception has not counted itself out. Until the driver is open all of it is the driver's.
 */
static bool __attribute__((noinline, cold)) is_driver(const void *caller) {
    uintptr_t address = (uintptr_t)__builtin_extract_return_addr((void *)caller);
    return !__atomic_load_n(&driver, __ATOMIC_ACQUIRE) || is_in(&driver_extent, address) || is_in(&own_extent, address);
}

/* What a program reaches: our hook, or the driver at once where it is calling out of a hook itself. A launch has no
 * hook of its own, for each function between the program and the driver copies the arguments that lie on the stack. */
#define IS_INNER(outer) (__builtin_expect((outer) != 0, 0) && is_driver(__builtin_return_address(0)))
#define HOOK(result, name, parameters, arguments)                                                                      \
    static result entry_##name parameters {                                                                            \
        unsigned outer = vcuda_depth;                                                                                  \
        result(*target) parameters = IS_INNER(outer) ? real.name : hook_##name;                                        \
        vcuda_depth = outer + 1;                                                                                       \
        result answer = target arguments;                                                                              \
        vcuda_depth = outer;                                                                                           \
        return answer;                                                                                                 \
    }
#define LAUNCH(result, name, parameters, arguments, stream, per_thread, what, size)                                    \
    static result entry_##name parameters {                                                                            \
        unsigned outer = vcuda_depth;                                                                                  \
        bool inner = IS_INNER(outer);                                                                                  \
        struct throttled_work work;                                                                                    \
        vcuda_depth = outer + 1;                                                                                       \
        bool held = !inner && throttle_may_wait() && throttle_begin(&work, stream, per_thread, what, size);            \
        result answer = real.name arguments;                                                                           \
        if (held)                                                                                                      \
            throttle_end(&work, answer);                                                                               \
        vcuda_depth = outer;                                                                                           \
        return answer;                                                                                                 \
    }
#define CALL(result, name, parameters)
#include "hooks.def"
#undef HOOK
#undef CALL

static void *const entries[VCUDA_NAMES] = {
#define HOOK(result, name, parameters, arguments) [ID_##name] = (void *)entry_##name,
#define CALL(result, name, parameters)
#include "hooks.def"
#undef HOOK
#undef CALL
};

void *vcuda_interposer_entry(unsigned id) {
    return entries[id];
}

const char *vcuda_interposer_name(unsigned id) {
    return names[id];
}

void *vcuda_interposer_find(const char *name) {
    void *handle = __atomic_load_n(&driver, __ATOMIC_ACQUIRE);
    return handle ? loader_find(handle, name) : NULL;
}

/* One bound pointer after the other; racing threads store the same ones. */
static void bind_real(void *handle) {
    void *found;
#define CALL(result, name, parameters)                                                                                 \
    if ((found = loader_find(handle, #name)))                                                                          \
        __atomic_store_n(&real.name, (result(*) parameters)found, __ATOMIC_RELAXED);
#define HOOK(result, name, parameters, arguments) CALL(result, name, parameters)
#include "hooks.def"
#undef HOOK
#undef CALL
}

/* An interposer mounted where the driver should be would call itself for ever. */
static bool is_interposer(const void *function) {
    return function >= (const void *)vcuda_trampolines && function < (const void *)vcuda_trampolines_end;
}

bool vcuda_interposer_open(void) {
    if (__atomic_load_n(&driver, __ATOMIC_ACQUIRE))
        return true;
    char path[PATHS_MAX];
    if (!paths_real(path, VCUDA_REAL_NAME))
        return false;
    vcuda_depth++;
    void *handle = loader_open(path);
    vcuda_depth--;
    const void *first = handle ? loader_find(handle, names[ID_FIRST]) : NULL;
    if (!first || is_interposer(first))
        return false;
    note_extent(&driver_extent, first);
    note_extent(&own_extent, vcuda_trampolines);
    bind_real(handle);
    __atomic_store_n(&driver, handle, __ATOMIC_RELEASE);
    return true;
}

/* What stands in for a function that cannot be reached: an error code, or text where text is expected. */
static void *answer(unsigned id, int (*code)(void)) {
#ifdef VCUDA_INTERPOSER_NVML
    if (id == ID_nvmlErrorString)
        return (void *)no_text;
#else
    (void)id;
#endif
    return (void *)code;
}

/* Called by the binders, once for each name a program uses: where to go, from now on too if that is final. */
void *vcuda_bind(unsigned id) {
    int saved = errno;
    void *target;
    if (!vcuda_interposer_open()) {
        target = entries[id] ? entries[id] : answer(id, no_driver); /* asked again at the next call */
    } else {
        void *found = loader_find(driver, names[id]);
        target = !found ? answer(id, vcuda_missing) : entries[id] ? entries[id] : found;
        __atomic_store_n(&vcuda_table[id], target, __ATOMIC_RELEASE);
    }
    errno = saved;
    return target;
}
