/* The driver behind the interposer: opened once, when it is first needed, and its functions.
 *
 * A program that never calls CUDA pays for a mapping and nothing else. There is no lock: opening twice gives the same
 * library, so threads that race store the same pointers, and a constructor of the driver that calls back passes
 * through.
 */
#include "interposer.h"

#include <stdint.h>

#include "loader.h"
#include "paths.h"

/* A function that every driver has. */
#ifdef VCUDA_INTERPOSER_CUDA
#define ID_FIRST ID_cuInit
#else
#define ID_FIRST ID_nvmlInit_v2
#endif

/* Where the exported names lie, in trampolines.S. */
extern const char vcuda_trampolines[] __attribute__((visibility("hidden")));
extern const char vcuda_trampolines_end[] __attribute__((visibility("hidden")));

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

bool __attribute__((noinline, cold)) vcuda_is_driver(const void *caller) {
    uintptr_t address = (uintptr_t)__builtin_extract_return_addr((void *)caller);
    return !__atomic_load_n(&driver, __ATOMIC_ACQUIRE) || is_in(&driver_extent, address) || is_in(&own_extent, address);
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
