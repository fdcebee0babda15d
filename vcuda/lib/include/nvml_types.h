/* The few types and values of NVML that the library itself handles, in our own words. */
#ifndef VCUDA_NVML_TYPES_H
#define VCUDA_NVML_TYPES_H

#include <stddef.h>
#include <stdint.h>

typedef int nvmlReturn_t;
typedef struct nvmlDevice_st *nvmlDevice_t;

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_LIBRARY_NOT_FOUND = 12,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13,
};

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
    unsigned int pid;
    unsigned long long bytes;
} nvmlProcessInfo_v1_t;

/* Of versions 2 and 3. */
typedef struct {
    unsigned int pid;
    unsigned long long bytes;
    unsigned int gpu_instance, compute_instance; /* NVML_NO_INSTANCE without MIG */
} nvmlProcessInfo_t;

#define NVML_NO_INSTANCE 0xffffffffu

typedef struct {
    unsigned int pid;
    unsigned long long bytes;
    unsigned int gpu_instance, compute_instance;
    unsigned long long protected_bytes;
} nvmlProcessDetail_v1_t;

enum {
    NVML_PROCESS_MODE_COMPUTE = 0,
    NVML_PROCESS_MODE_GRAPHICS = 1,
    NVML_PROCESS_MODE_MPS = 2,
    NVML_PROCESS_MODE_ALL = 3
};

typedef struct {
    unsigned int version, mode, count;
    nvmlProcessDetail_v1_t *list;
} nvmlProcessDetailList_t;

/* Percent of the last sampling period. */
typedef struct {
    unsigned int gpu, memory;
} nvmlUtilization_t;

typedef struct {
    unsigned int pid;
    unsigned long long time_us;
    unsigned int sm, memory, encoder, decoder;
} nvmlProcessUtilizationSample_t;

typedef struct {
    unsigned long long time_us;
    unsigned int pid, sm, memory, encoder, decoder, jpeg, ofa;
} nvmlProcessUtilizationInfo_v1_t;

typedef struct {
    unsigned int version, count;
    unsigned long long last_seen_us;
    nvmlProcessUtilizationInfo_v1_t *list;
} nvmlProcessesUtilizationInfo_t;

typedef struct {
    unsigned long long time_us;
    unsigned long long value; /* a union: an unsigned int lies in its first half */
} nvmlSample_t;

enum { NVML_GPU_UTILIZATION_SAMPLES = 1, NVML_MEMORY_UTILIZATION_SAMPLES = 2, NVML_VALUE_TYPE_UNSIGNED_INT = 1 };

typedef struct {
    unsigned int version, supported;
} nvmlGpmSupport_t;

#endif
