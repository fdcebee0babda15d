/* MIG: a divided card lists its instance, which has handle, name, UUID, memory and processes of its own. */
#include "nvml.h"

nvmlReturn_t model_nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *out) {
    nvmlReturn_t result = out ? nvml_find(device) : NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *out = device->parent != NULL;
    return result;
}

nvmlReturn_t model_nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *out) {
    nvmlReturn_t result = out ? nvml_find(device) : NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return result;
    if (!device->instance || index)
        return NVML_ERROR_NOT_FOUND;
    *out = device->instance;
    return NVML_SUCCESS;
}

nvmlReturn_t model_nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *out) {
    nvmlReturn_t result = out ? nvml_find(device) : NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return result;
    if (!device->parent)
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = device->parent;
    return NVML_SUCCESS;
}

static nvmlReturn_t place(nvmlDevice_t device, unsigned int number, unsigned int *out) {
    nvmlReturn_t result = out ? nvml_find(device) : NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return result;
    if (!device->parent)
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = number;
    return NVML_SUCCESS;
}

nvmlReturn_t model_nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *out) {
    return place(device, MIG_GI, out);
}

nvmlReturn_t model_nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *out) {
    return place(device, MIG_CI, out);
}
