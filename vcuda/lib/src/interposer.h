/* The interposer as hooks use it: the driver's own functions, and whether the driver itself is the caller. */
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
    VCUDA_NAMES /* number of names */
};

/* The driver's functions, bound when the driver is opened; until then they return "not found". */
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

/* True if the driver has this function. */
#define real_has(name) ((void (*)(void))real.name != (void (*)(void))vcuda_missing)
int vcuda_missing(void);

/* > 0 while a hook of this thread is running, or since one was left by longjmp. Initial-exec: reading it allocates
 * nothing. */
extern __thread unsigned vcuda_depth __attribute__((tls_model("initial-exec")));

/* While a hook runs: true if the caller is the driver itself, whose calls are passed through. A call from elsewhere
 * comes from a handler of the program, for a signal or of a profiler; or the hook was left by longjmp or an exception
 * and so did not decrement vcuda_depth. Before the driver is open every caller counts as the driver. */
bool vcuda_is_driver(const void *caller);

/* Open the driver unless it is open; false if it cannot be opened. Any thread may call, any number of times. */
bool vcuda_interposer_open(void);

/* The address of a function of the driver, or NULL. */
void *vcuda_interposer_find(const char *name);

/* The name with this id. */
const char *vcuda_interposer_name(unsigned id);

#endif
