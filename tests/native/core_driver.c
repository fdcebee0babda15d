/* The smallest driver that a launch can be timed on: every call returns at once, a kernel takes CORE_KERNEL_NS (100). */
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
static float kernel_ms = 1e-4f;
static int something;

EXPORT int cuInit(unsigned flags) {
    const char *text = getenv("CORE_KERNEL_NS");
    if (text)
        kernel_ms = (float)atof(text) * 1e-6f;
    return (int)flags;
}
EXPORT int cuLaunchKernel(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned h,
                          void *stream, void **params, void **extra) {
    (void)f, (void)a, (void)b, (void)c, (void)d, (void)e, (void)g, (void)h, (void)stream, (void)params, (void)extra;
    return 0;
}
EXPORT int cuCtxGetCurrent(void **context) { return *context = &something, 0; }
EXPORT int cuCtxGetDevice(int *device) { return *device = 0, 0; }
EXPORT int cuCtxGetId(void *context, unsigned long long *id) { return *id = 7, context == NULL; }
EXPORT int cuCtxPushCurrent_v2(void *context) { return context == NULL; }
EXPORT int cuCtxPopCurrent_v2(void **context) { return *context = &something, 0; }
EXPORT int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    for (int i = 0; i < 16; i++)
        uuid[i] = (unsigned char)i;
    return device;
}
EXPORT int cuStreamCreate(void **stream, unsigned flags) { return *stream = malloc(1), flags > 1; }
EXPORT int cuStreamDestroy_v2(void *stream) { return free(stream), stream == NULL; }
EXPORT int cuStreamGetCtx(void *stream, void **context) { return *context = &something, stream == NULL; }
EXPORT int cuEventCreate(void **event, unsigned flags) { return *event = malloc(1), (int)flags; }
EXPORT int cuEventRecord(void *event, void *stream) { return (void)stream, event == NULL; }
EXPORT int cuEventQuery(void *event) { return event == NULL; }
EXPORT int cuEventElapsedTime(float *ms, void *start, void *end) {
    return *ms = kernel_ms, start == NULL || end == NULL;
}
