/* C clients on the driver API: they know no CUDA header, find the driver as the CUDA runtime does, and say plainly
 * what they saw. They run on the stand-in and on a real card alike. */
#ifndef VCUDA_CLIENT_H
#define VCUDA_CLIENT_H

#include <stddef.h>
#include <stdint.h>

typedef unsigned long long device_pointer;

/* Name, oldest version that has the wanted form, parameters. Expanded into the table and its loader. */
#define CLIENT_FUNCTIONS(F)                                                                                            \
    F(cuInit, 2000, (unsigned int))                                                                                    \
    F(cuDriverGetVersion, 2020, (int *))                                                                               \
    F(cuDeviceGet, 2000, (int *, int))                                                                                 \
    F(cuDeviceGetCount, 2000, (int *))                                                                                 \
    F(cuDeviceGetName, 2000, (char *, int, int))                                                                       \
    F(cuDeviceGetUuid, 9020, (unsigned char *, int))                                                                   \
    F(cuDeviceGetAttribute, 2000, (int *, int, int))                                                                   \
    F(cuDeviceTotalMem, 3020, (size_t *, int))                                                                         \
    F(cuDevicePrimaryCtxRetain, 7000, (void **, int))                                                                  \
    F(cuDevicePrimaryCtxRelease, 11000, (int))                                                                         \
    F(cuDevicePrimaryCtxReset, 11000, (int))                                                                           \
    F(cuCtxSetCurrent, 4000, (void *))                                                                                 \
    F(cuCtxGetCurrent, 4000, (void **))                                                                                \
    F(cuCtxSynchronize, 2000, (void))                                                                                  \
    F(cuMemGetInfo, 3020, (size_t *, size_t *))                                                                        \
    F(cuMemAlloc, 3020, (device_pointer *, size_t))                                                                    \
    F(cuMemFree, 3020, (device_pointer))                                                                               \
    F(cuMemHostAlloc, 2020, (void **, size_t, unsigned int))                                                           \
    F(cuMemAllocPitch, 3020, (device_pointer *, size_t *, size_t, size_t, unsigned int))                               \
    F(cuMemAllocManaged, 6000, (device_pointer *, size_t, unsigned int))                                               \
    F(cuMemPrefetchAsync, 8000, (device_pointer, size_t, int, void *))                                                 \
    F(cuMemAllocAsync, 11020, (device_pointer *, size_t, void *))                                                      \
    F(cuMemFreeAsync, 11020, (device_pointer, void *))                                                                 \
    F(cuMemCreate, 10020, (unsigned long long *, size_t, const void *, unsigned long long))                            \
    F(cuMemRelease, 10020, (unsigned long long))                                                                       \
    F(cuArray3DCreate, 3020, (void **, const void *))                                                                  \
    F(cuArrayDestroy, 2000, (void *))                                                                                  \
    F(cuMemsetD8, 3020, (device_pointer, unsigned char, size_t))                                                       \
    F(cuMemcpyHtoD, 3020, (device_pointer, const void *, size_t))                                                      \
    F(cuMemcpyDtoH, 3020, (void *, device_pointer, size_t))                                                            \
    F(cuIpcGetMemHandle, 4010, (void *, device_pointer))                                                               \
    F(cuModuleLoadData, 2000, (void **, const void *))                                                                 \
    F(cuModuleGetFunction, 2000, (void **, void *, const char *))                                                      \
    F(cuFuncSetAttribute, 9000, (void *, int, int))                                                                    \
    F(cuLaunchKernel, 4000,                                                                                            \
      (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **))        \
    F(cuStreamCreate, 2000, (void **, unsigned int))                                                                   \
    F(cuStreamSynchronize, 2000, (void *))                                                                             \
    F(cuStreamBeginCapture, 10010, (void *, int))                                                                      \
    F(cuStreamEndCapture, 10000, (void *, void **))                                                                    \
    F(cuGraphInstantiateWithFlags, 11040, (void **, void *, unsigned long long))                                       \
    F(cuGraphLaunch, 10000, (void *, void *))                                                                          \
    F(cuGraphExecDestroy, 10000, (void *))                                                                             \
    F(cuGraphDestroy, 10000, (void *))                                                                                 \
    F(cuEventCreate, 2000, (void **, unsigned int))                                                                    \
    F(cuEventRecord, 2000, (void *, void *))                                                                           \
    F(cuEventQuery, 2000, (void *))                                                                                    \
    F(cuEventSynchronize, 2000, (void *))                                                                              \
    F(cuEventElapsedTime, 2000, (float *, void *, void *))

#define CLIENT_POINTER(name, version, parameters) int(*name) parameters;
struct driver {
    CLIENT_FUNCTIONS(CLIENT_POINTER)
};
#undef CLIENT_POINTER

extern struct driver driver;

/* Options are `--name value`; the value, or the default. */
const char *option(int argc, char **argv, const char *name, const char *otherwise);
long option_number(int argc, char **argv, const char *name, long otherwise);

/* Loads the driver and makes the primary context of the first card current. Exits with a word on failure. */
void use_card(int ordinal);
/* Exits with a word unless the result is 0. */
void must(int result, const char *what);
double seconds_now(void);
/* Seconds until the next of so many arrivals a second (Poisson, drawn by random()). */
double random_gap(double per_second);
/* Until this moment of seconds_now(), its last part awake. */
void wait_until(double at);
/* For qsort() of doubles. */
int by_length(const void *a, const void *b);

enum { NON_BLOCKING = 1 }; /* of streams */

/* A kernel of `us` microseconds: `per_ms` of its rounds are a millisecond, `out` is memory of the host, `shared`
 * bytes of each of its blocks. */
struct kernel {
    void *function;
    uint32_t us, per_ms;
    volatile uint64_t *out;
    unsigned int grid, shared;
};

/* Makes the context, loads the kernel and finds its length; `--us` and `--grid` are read, `us` is the default. */
void kernel_load(struct kernel *kernel, int argc, char **argv, long us);
void kernel_launch(struct kernel *kernel, void *stream);

int run_spin(int argc, char **argv);
int run_paced(int argc, char **argv);
int run_serve(int argc, char **argv);
int run_worker(int argc, char **argv);
int run_leave(int argc, char **argv);
int run_capture(int argc, char **argv);
int run_alloc(int argc, char **argv);
int run_info(int argc, char **argv);

#endif
