/* What a hook needs of the interposer: the driver's own functions, and whether the driver itself is calling. */
#ifndef VCUDA_INTERPOSER_H
#define VCUDA_INTERPOSER_H

#include <stdbool.h>

#ifdef VCUDA_INTERPOSER_CUDA
#include "cu_types.h"
#define VCUDA_REAL_NAME "libcuda.so.1"
#define VCUDA_MISSING 500 /* CUDA_ERROR_NOT_FOUND: the driver has no such function */
#define VCUDA_NO_DRIVER 500
#else
#include "nvml_types.h"
#define VCUDA_REAL_NAME "libnvidia-ml.so.1"
#define VCUDA_MISSING 13   /* NVML_ERROR_FUNCTION_NOT_FOUND */
#define VCUDA_NO_DRIVER 12 /* NVML_ERROR_LIBRARY_NOT_FOUND */
#endif

/* A number for each exported name, in the order of the tables. */
enum vcuda_name {
#define NAME(name, index) ID_##name = index,
#include "names.inc"
#undef NAME
    VCUDA_NAMES /* how many */
};

/* The driver's functions, bound when the driver is opened; before that they answer "not found". */
struct vcuda_real {
#define HOOK(result, name, parameters, arguments) result(*name) parameters;
#define CALL(result, name, parameters) result(*name) parameters;
#include "hooks.def"
#undef HOOK
#undef CALL
};
extern struct vcuda_real real;

#define HOOK(result, name, parameters, arguments) result hook_##name parameters;
#define CALL(result, name, parameters)
#include "hooks.def"
#undef HOOK
#undef CALL

/* Does the driver have this function? */
#define real_has(name) ((void (*)(void))real.name != (void (*)(void))vcuda_missing)
int vcuda_missing(void);

/* > 0 while a hook of this thread is running, or since one was left by longjmp. Initial-exec: reading it allocates
 * nothing. */
extern __thread unsigned vcuda_depth __attribute__((tls_model("initial-exec")));

/* While a hook runs, is this the driver calling, to whom the call is not ours to answer? What is called from elsewhere
 * comes from a handler of the program's: a signal's, or a profiler's. Or there is no hook running any more: one that
 * was left by longjmp or an exception has not counted itself out. Until the driver is open all of it is the driver's.
 */
bool vcuda_is_driver(const void *caller);

/* Open the driver if that has not been done; false if it cannot be opened. Any thread, any number of times. */
bool vcuda_interposer_open(void);

/* The address of a function of the driver, or NULL. */
void *vcuda_interposer_find(const char *name);

/* The name itself. */
const char *vcuda_interposer_name(unsigned id);

#endif
