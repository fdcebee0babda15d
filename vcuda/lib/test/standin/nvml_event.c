/*
 * Events. A test makes one happen by adding a line `<type> <data>` to `<state>/event-<uuid>`; each set delivers the
 * lines that were added after the card was registered with it.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "nvml.h"

enum { STEP_MS = 20 };
/* ECC, Xid, clock, power source, MIG, row remapper, and what later drivers added. */
#define SUPPORTED 0xfe9fULL

struct event_set {
    unsigned long long types[MAX_CARDS];
    long seen[MAX_CARDS];
    nvmlDevice_t device[MAX_CARDS];
};

static FILE *events_of(nvmlDevice_t device) {
    char path[384];
    snprintf(path, sizeof path, "%s/event-%s", config_read()->state, device->hold.config->uuid_text);
    return fopen(path, "re");
}

nvmlReturn_t model_nvmlEventSetCreate(nvmlEventSet_t *out) {
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = calloc(1, sizeof **out);
    return *out ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}
nvmlReturn_t model_nvmlEventSetFree(nvmlEventSet_t set) {
    if (!set)
        return NVML_ERROR_INVALID_ARGUMENT;
    free(set);
    return NVML_SUCCESS;
}
nvmlReturn_t model_nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *out) {
    nvmlReturn_t result = nvml_find(device);
    if (result == NVML_SUCCESS && out)
        *out = SUPPORTED;
    return result == NVML_SUCCESS && !out ? NVML_ERROR_INVALID_ARGUMENT : result;
}
nvmlReturn_t model_nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
    nvmlReturn_t result = nvml_find(device);
    if (result != NVML_SUCCESS || !set)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    if (types & ~SUPPORTED)
        return NVML_ERROR_NOT_SUPPORTED;
    if (!set->device[device->index]) {
        FILE *file = events_of(device);
        if (file && fseek(file, 0, SEEK_END) == 0)
            set->seen[device->index] = ftell(file);
        if (file)
            fclose(file);
    }
    set->device[device->index] = device;
    set->types[device->index] |= types;
    return NVML_SUCCESS;
}

static bool next(struct event_set *set, int index, nvmlEventData_t *out) {
    FILE *file = set->device[index] ? events_of(set->device[index]) : NULL;
    bool found = false;
    unsigned long long type, data;
    if (file && fseek(file, set->seen[index], SEEK_SET) == 0)
        while (!found && fscanf(file, "%llu %llu", &type, &data) == 2) {
            set->seen[index] = ftell(file);
            found = type & set->types[index];
            if (found)
                *out = (nvmlEventData_t){set->device[index], type, data, ~0U, ~0U};
        }
    if (file)
        fclose(file);
    return found;
}

nvmlReturn_t model_nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *out, unsigned int timeout_ms) {
    if (!set || !out)
        return NVML_ERROR_INVALID_ARGUMENT;
    int64_t until = now_ns() + (int64_t)timeout_ms * 1000000;
    for (;;) {
        for (int index = 0; index < MAX_CARDS; index++)
            if (next(set, index, out))
                return NVML_SUCCESS;
        if (now_ns() >= until)
            return NVML_ERROR_TIMEOUT;
        poll(NULL, 0, STEP_MS);
    }
}
ALIAS(nvmlEventSetWait, nvmlEventSetWait_v2);
