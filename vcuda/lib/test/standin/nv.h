/* The part of NVML that the stand-in models. Names, numbers and field order are the interface's. */
#ifndef STANDIN_NV_H
#define STANDIN_NV_H

#include <stddef.h>
#include <stdint.h>

typedef enum nvmlReturn_t {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_OPERATING_SYSTEM = 17,
    NVML_ERROR_UNKNOWN = 999,
} nvmlReturn_t;

typedef struct nvml_card *nvmlDevice_t;
typedef struct event_set *nvmlEventSet_t;

typedef struct nvmlMemory {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct nvmlMemory_v2 {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct nvmlUtilization {
    unsigned int gpu, memory;
} nvmlUtilization_t;

typedef struct nvmlPciInfo_v2 {
    char legacy[16];
    unsigned int domain, bus, device, id, subsystem, reserved[4];
} nvmlPciInfo_v2_t;

typedef struct nvmlPciInfo {
    char legacy[16];
    unsigned int domain, bus, device, id, subsystem;
    char bus_id[32];
} nvmlPciInfo_t;

typedef struct nvmlProcessInfo_v1 {
    unsigned int pid;
    unsigned long long used;
} nvmlProcessInfo_v1_t;

typedef struct nvmlProcessInfo {
    unsigned int pid;
    unsigned long long used;
    unsigned int gpu_instance, compute_instance;
} nvmlProcessInfo_t;

typedef struct nvmlProcessDetail {
    unsigned int pid;
    unsigned long long used;
    unsigned int gpu_instance, compute_instance;
    unsigned long long protected_bytes;
} nvmlProcessDetail_t;

typedef struct nvmlProcessDetailList {
    unsigned int version, mode, count;
    nvmlProcessDetail_t *list;
} nvmlProcessDetailList_t;

typedef struct nvmlProcessUtilizationSample {
    unsigned int pid;
    unsigned long long time_us;
    unsigned int sm, memory, encoder, decoder;
} nvmlProcessUtilizationSample_t;

typedef struct nvmlProcessUtilizationInfo {
    unsigned long long time_us;
    unsigned int pid, sm, memory, encoder, decoder, jpeg, ofa;
} nvmlProcessUtilizationInfo_t;

typedef struct nvmlProcessesUtilizationInfo {
    unsigned int version, count;
    unsigned long long since_us;
    nvmlProcessUtilizationInfo_t *list;
} nvmlProcessesUtilizationInfo_t;

typedef union nvmlValue {
    double as_double;
    unsigned int as_uint;
    unsigned long long as_ulonglong;
} nvmlValue_t;

typedef struct nvmlSample {
    unsigned long long time_us;
    nvmlValue_t value;
} nvmlSample_t;

typedef struct nvmlFieldValue {
    unsigned int id, scope;
    long long time_us, latency_us;
    int type;
    nvmlReturn_t result;
    nvmlValue_t value;
} nvmlFieldValue_t;

typedef struct nvmlEventData {
    nvmlDevice_t device;
    unsigned long long type, data;
    unsigned int gpu_instance, compute_instance;
} nvmlEventData_t;

typedef struct nvmlBAR1Memory {
    unsigned long long total, free, used;
} nvmlBAR1Memory_t;

typedef struct nvmlSetMemoryLimits {
    const char *name_space;
    unsigned long long soft, hard;
} nvmlSetMemoryLimits_t;

typedef struct nvmlGetMemoryLimits {
    const char *name_space;
    unsigned long long soft, hard, used;
} nvmlGetMemoryLimits_t;

#define ALIAS(old, model) _Static_assert(sizeof #old > 1 && sizeof #model > 1, "")

typedef struct {
    unsigned int gpu, memory;
    unsigned long long most_bytes, time_ms, start_us;
    unsigned int running, reserved[5];
} nvmlAccountingStats_t;

#endif
