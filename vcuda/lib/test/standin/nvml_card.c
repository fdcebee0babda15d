/* What NVML says about one card: identity, memory, utilisation, health, links. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nvml.h"

#define NEED_CARD(name, handle, pointer)                                                                               \
    nvmlReturn_t found = nvml_find(handle);                                                                            \
    if (found != NVML_SUCCESS || !(pointer))                                                                           \
        return found != NVML_SUCCESS ? found : NVML_ERROR_INVALID_ARGUMENT;                                            \
    const struct card_config *name = (handle)->hold.config

#define FACT(function, type, value)                                                                                    \
    {                                                                                                                  \
        NEED_CARD(card, device, out);                                                                                  \
        (void)card;                                                                                                    \
        *out = (type)(value);                                                                                          \
        return NVML_SUCCESS;                                                                                           \
    }                                                                                                                  \
    _Static_assert(sizeof #function > 1, "")

nvmlReturn_t model_nvmlDeviceGetName(nvmlDevice_t device, char *out, unsigned int length) {
    NEED_CARD(card, device, out);
    return nvml_copy(out, length, card->name);
}
nvmlReturn_t model_nvmlDeviceGetUUID(nvmlDevice_t device, char *out, unsigned int length) {
    NEED_CARD(card, device, out);
    return nvml_copy(out, length, card->uuid_text);
}
nvmlReturn_t model_nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *out) FACT(index, unsigned int, card->index);
nvmlReturn_t model_nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *out)
    FACT(minor, unsigned int, card->index);
nvmlReturn_t model_nvmlDeviceGetMultiGpuBoard(nvmlDevice_t device, unsigned int *out) FACT(board, unsigned int, 0);
nvmlReturn_t model_nvmlDeviceGetBrand(nvmlDevice_t device, int *out) FACT(brand, int, card->major == 7 ? 2 : 14);
nvmlReturn_t model_nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned int *out) FACT(architecture, unsigned int,
                                                                                          card->major == 7   ? 6
                                                                                          : card->major == 9 ? 9
                                                                                          : card->minor == 9 ? 8
                                                                                                             : 7);
nvmlReturn_t model_nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned int *out)
    FACT(cores, unsigned int, card->sms *(card->major == 8 && !card->minor ? 64 : 128));
nvmlReturn_t model_nvmlDeviceGetMemoryBusWidth(nvmlDevice_t device, unsigned int *out)
    FACT(width, unsigned int, card->bus_bits);
nvmlReturn_t model_nvmlDeviceGetDisplayMode(nvmlDevice_t device, int *out) FACT(display, int, 0);
nvmlReturn_t model_nvmlDeviceGetDisplayActive(nvmlDevice_t device, int *out) FACT(display, int, 0);
nvmlReturn_t model_nvmlDeviceGetPerformanceState(nvmlDevice_t device, int *out) FACT(state, int, 0);
nvmlReturn_t model_nvmlDeviceGetComputeMode(nvmlDevice_t device, int *out) FACT(mode, int, 0);
nvmlReturn_t model_nvmlDeviceGetPersistenceMode(nvmlDevice_t device, int *out) FACT(mode, int, 1);
nvmlReturn_t model_nvmlDeviceGetAccountingMode(nvmlDevice_t device, int *out) FACT(mode, int, 0);
nvmlReturn_t model_nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *out)
    FACT(reasons, unsigned long long, 0);
ALIAS(nvmlDeviceGetCurrentClocksThrottleReasons, nvmlDeviceGetCurrentClocksEventReasons);
nvmlReturn_t model_nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, int *out) FACT(pending, int, 0);
nvmlReturn_t model_nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *out)
    FACT(limit, unsigned int, card->power_w * 1000);
nvmlReturn_t model_nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *out)
    FACT(limit, unsigned int, card->power_w * 1000);
nvmlReturn_t model_nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *out)
    FACT(count, unsigned int, card->mig ? 7 : 0);

nvmlReturn_t model_nvmlDeviceGetSerial(nvmlDevice_t device, char *out, unsigned int length) {
    NEED_CARD(card, device, out);
    char text[32];
    snprintf(text, sizeof text, "165%09d", card->index + 1);
    return nvml_copy(out, length, text);
}
nvmlReturn_t model_nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *out, unsigned int length) {
    NEED_CARD(card, device, out);
    (void)card;
    return nvml_copy(out, length, "96.00.00.00.01");
}
nvmlReturn_t model_nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    NEED_CARD(card, device, major && minor);
    *major = card->major;
    *minor = card->minor;
    return NVML_SUCCESS;
}

/* ---- place on the bus ------------------------------------------------------------------------------------------- */

static void fill_pci(const struct card_config *card, nvmlPciInfo_t *out) {
    memset(out, 0, sizeof *out);
    sscanf(card->pci_text, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    out->id = 0x233510deU;
    out->subsystem = 0x18be10deU;
    snprintf(out->bus_id, sizeof out->bus_id, "%s", card->pci_text);
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", out->domain & 0xffffU, out->bus & 0xffU,
             out->device & 0xffU);
}
nvmlReturn_t model_nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *out) {
    NEED_CARD(card, device, out);
    fill_pci(card, out);
    return NVML_SUCCESS;
}
nvmlReturn_t model_nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_v2_t *out) {
    NEED_CARD(card, device, out);
    nvmlPciInfo_t whole;
    fill_pci(card, &whole);
    memcpy(out->legacy, whole.legacy, sizeof out->legacy);
    out->domain = whole.domain;
    out->bus = whole.bus;
    out->device = whole.device;
    out->id = whole.id;
    out->subsystem = whole.subsystem;
    return NVML_SUCCESS;
}
/* Cards of the first half sit at NUMA node 0, the others at node 1; a machine of one or two cards has one node. */
nvmlReturn_t model_nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words, unsigned long *out, int scope) {
    (void)scope;
    NEED_CARD(card, device, out && words);
    memset(out, 0, words * sizeof *out);
    out[0] = nvml_cards > 2 && card->index >= nvml_cards / 2 ? 2 : 1;
    return NVML_SUCCESS;
}
nvmlReturn_t model_nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long *out) {
    NEED_CARD(card, device, out && words);
    (void)card;
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    memset(out, 0, words * sizeof *out);
    for (long at = 0; at < processors && at < (long)(words * 64); at++)
        out[at / 64] |= 1UL << (at % 64);
    return NVML_SUCCESS;
}

/* ---- memory and load ----------------------------------------------------------------------------------------------
 */

nvmlReturn_t model_nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out) {
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = nvml_look(device);
    if (result != NVML_SUCCESS)
        return result;
    out->total = (unsigned long long)(device->instance ? device->hold.config->memory_bytes : device->hold.card->total);
    out->used = (unsigned long long)card_used(&device->hold);
    out->free = out->total - out->used;
    nvml_done(device);
    return NVML_SUCCESS;
}
/* The stand-in reserves nothing for itself. */
nvmlReturn_t model_nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out) {
    nvmlMemory_t memory;
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = model_nvmlDeviceGetMemoryInfo(device, &memory);
    if (result == NVML_SUCCESS)
        *out = (nvmlMemory_v2_t){out->version, memory.total, 0, memory.free, memory.used};
    return result;
}
nvmlReturn_t model_nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *out) {
    NEED_CARD(card, device, out);
    out->total = card->major >= 8 ? 128ULL << 30 : 256ULL << 20;
    out->used = 2ULL << 20;
    out->free = out->total - out->used;
    return NVML_SUCCESS;
}

/* Per mille of the last whole sampling period. */
static nvmlReturn_t load(nvmlDevice_t device, int *permille) {
    nvmlReturn_t result = nvml_look(device);
    if (result != NVML_SUCCESS)
        return result;
    *permille = card_busy_permille(device->hold.card->bucket, now_ns() / BUCKET_NS - 1);
    nvml_done(device);
    return NVML_SUCCESS;
}
nvmlReturn_t model_nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out) {
    int permille = 0;
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = load(device, &permille);
    if (result == NVML_SUCCESS && nvml_divided(device))
        return NVML_ERROR_NOT_SUPPORTED;
    if (result == NVML_SUCCESS)
        *out = (nvmlUtilization_t){(unsigned int)permille / 10, (unsigned int)permille / 20};
    return result;
}
/* Idle, a card takes a tenth of its power; at full load nearly all of it. */
nvmlReturn_t model_nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *out) {
    int permille = 0;
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = load(device, &permille);
    if (result == NVML_SUCCESS)
        *out = (unsigned int)device->hold.config->power_w * (100U + (unsigned int)permille * 85U / 100U);
    return result;
}
nvmlReturn_t model_nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned int *out) {
    int permille = 0;
    if (!out || sensor != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = load(device, &permille);
    if (result == NVML_SUCCESS)
        *out = 34U + (unsigned int)permille / 25U;
    return result;
}
nvmlReturn_t model_nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, int which, unsigned int *out) {
    NEED_CARD(card, device, out);
    (void)card;
    *out = which == 0 ? 92 : 89;
    return NVML_SUCCESS;
}
static nvmlReturn_t clock_mhz(nvmlDevice_t device, int type, unsigned int *out) {
    NEED_CARD(card, device, out);
    if (type < 0 || type > 3)
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = (unsigned int)(type == 2 ? card->memory_clock_khz : card->clock_khz) / 1000;
    return NVML_SUCCESS;
}
nvmlReturn_t model_nvmlDeviceGetClockInfo(nvmlDevice_t device, int type, unsigned int *out) {
    return clock_mhz(device, type, out);
}
nvmlReturn_t model_nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, int type, unsigned int *out) {
    return clock_mhz(device, type, out);
}
static nvmlReturn_t codec(nvmlDevice_t device, unsigned int *percent, unsigned int *period_us) {
    NEED_CARD(card, device, percent && period_us);
    (void)card;
    *percent = 0;
    *period_us = (unsigned int)(BUCKET_NS / 1000);
    return NVML_SUCCESS;
}
nvmlReturn_t model_nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int *percent,
                                                   unsigned int *period_us) {
    return codec(device, percent, period_us);
}
nvmlReturn_t model_nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int *percent,
                                                   unsigned int *period_us) {
    return codec(device, percent, period_us);
}

/* ---- health and modes ---------------------------------------------------------------------------------------------
 */

nvmlReturn_t model_nvmlDeviceGetEccMode(nvmlDevice_t device, int *current, int *pending) {
    NEED_CARD(card, device, current && pending);
    (void)card;
    *current = *pending = 1;
    return NVML_SUCCESS;
}
nvmlReturn_t model_nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int kind, int counter, unsigned long long *out) {
    NEED_CARD(card, device, out && kind >= 0 && kind <= 1 && counter >= 0 && counter <= 1);
    (void)card;
    *out = 0;
    return NVML_SUCCESS;
}
nvmlReturn_t model_nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected, unsigned int *uncorrected,
                                             unsigned int *pending, unsigned int *failed) {
    NEED_CARD(card, device, corrected && uncorrected && pending && failed);
    if (card->major < 8)
        return NVML_ERROR_NOT_SUPPORTED;
    *corrected = *uncorrected = *pending = *failed = 0;
    return NVML_SUCCESS;
}
nvmlReturn_t model_nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    NEED_CARD(card, device, current && pending);
    if (card->major < 8 || (card->major == 8 && card->minor))
        return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = card->mig;
    return NVML_SUCCESS;
}
nvmlReturn_t model_nvmlDeviceSetComputeMode(nvmlDevice_t device, int mode) {
    NEED_CARD(card, device, mode >= 0 && mode <= 3);
    (void)card;
    return geteuid() == 0 ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
}
nvmlReturn_t model_nvmlDeviceSetPersistenceMode(nvmlDevice_t device, int mode) {
    NEED_CARD(card, device, mode >= 0 && mode <= 1);
    (void)card;
    return geteuid() == 0 ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
}

/* Limits by cgroup are kept in files of the state directory, and enforced by nobody here. */
static void limit_path(char *path, size_t size, nvmlDevice_t device, const char *cgroup) {
    unsigned long long hash = 14695981039346656037ULL;
    for (; *cgroup; cgroup++)
        hash = (hash ^ (unsigned char)*cgroup) * 1099511628211ULL;
    snprintf(path, size, "%s/limit-%s-%016llx", config_read()->state, device->hold.config->uuid_text, hash);
}
nvmlReturn_t model_nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_t *limits) {
    NEED_CARD(card, device, limits && limits->name_space);
    unsigned long long none = ~0ULL, total = (unsigned long long)card->memory_bytes;
    bool clears = limits->soft == 0 && limits->hard == none;
    if (nvml_divided(device))
        return NVML_ERROR_NOT_SUPPORTED;
    if (geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    if (limits->soft > limits->hard || (!clears && limits->hard > total))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (access(limits->name_space, F_OK) != 0)
        return NVML_ERROR_OPERATING_SYSTEM;
    char path[512];
    limit_path(path, sizeof path, device, limits->name_space);
    if (clears) {
        unlink(path);
        return NVML_SUCCESS;
    }
    FILE *file = fopen(path, "we");
    if (!file)
        return NVML_ERROR_OPERATING_SYSTEM;
    fprintf(file, "%llu %llu\n", limits->soft, limits->hard);
    fclose(file);
    return NVML_SUCCESS;
}
nvmlReturn_t model_nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_t *limits) {
    NEED_CARD(card, device, limits && limits->name_space);
    (void)card;
    char path[512];
    limit_path(path, sizeof path, device, limits->name_space);
    FILE *file = fopen(path, "re");
    if (!file)
        return NVML_ERROR_NOT_FOUND;
    bool read = fscanf(file, "%llu %llu", &limits->soft, &limits->hard) == 2;
    fclose(file);
    limits->used = 0;
    return read ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}
