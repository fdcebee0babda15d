/* The entries of the interposer: one exported trampoline for each name, a table they jump through, and what fills it.
 *
 * Each slot of the table starts at a binder, which asks vcuda_bind() at the first call for what belongs there: our
 * hook, the driver's function, or an answer "not found".
 */
#include "entries.h"

#include <errno.h>

#include "interposer.h"
#ifdef VCUDA_INTERPOSER_CUDA
#include "cuda/local_memory.h"
#include "cuda/throttle.h"
#endif

/* The table the trampolines jump through is in trampolines.S. */
extern void *vcuda_table[VCUDA_NAMES] __attribute__((visibility("hidden")));
void *vcuda_bind(unsigned id);

/* What a program reaches: our hook, or the driver at once where it is calling out of a hook itself. A launch has no
 * hook of its own, for each function between the program and the driver copies the arguments that lie on the stack. */
#define IS_INNER(outer) (__builtin_expect((outer) != 0, 0) && vcuda_is_driver(__builtin_return_address(0)))
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
        if (!inner && local_may_grow(what)) {                                                                          \
            result denied = local_launch(what, stream, per_thread);                                                    \
            if (denied) {                                                                                              \
                vcuda_depth = outer;                                                                                   \
                return denied;                                                                                         \
            }                                                                                                          \
        }                                                                                                              \
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

void *vcuda_entry(unsigned id) {
    return entries[id];
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
        void *found = vcuda_interposer_find(vcuda_interposer_name(id));
        target = !found ? answer(id, vcuda_missing) : entries[id] ? entries[id] : found;
        __atomic_store_n(&vcuda_table[id], target, __ATOMIC_RELEASE);
    }
    errno = saved;
    return target;
}
