/*
 * NVML over the same cards: start and end, handles, errors. Time stamps are wall-clock microseconds. Memory and
 * processes are read from the card's shared state at the call; utilisation comes from whole sampling periods of a
 * sixth of a second, so it lags by up to one, in whole per cent, as the real one does.
 */
#define _GNU_SOURCE
#include "nvml.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "generated.h"

int standin_gate = 1; /* NVML is never so fast that the gate matters */
__thread bool standin_per_thread;
int nvml_cards;

static struct nvml_card cards[MAX_CARDS], parents[MAX_CARDS];
static struct card_config parent_config[MAX_CARDS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int users;

/* A divided card above its instance: the same state, another name. */
static void open_parent(int at) {
    parent_config[at] = config_parent(cards[at].hold.config);
    parents[at] = cards[at];
    parents[at].hold.config = &parent_config[at];
    parents[at].instance = &cards[at];
    cards[at].parent = &parents[at];
}

int standin_injected(const char *name) {
    const char *text = config_text("fail");
    static int calls[16];
    for (int at = 0; text && *text && at < 16; at++, text += strcspn(text, ","), text += *text == ',') {
        char failing[64];
        int code, nth, got = sscanf(text, "%63[^=,]=%d@%d", failing, &code, &nth);
        if (got < 2 || strcmp(failing, name) != 0)
            continue;
        int call = __atomic_add_fetch(&calls[at], 1, __ATOMIC_RELAXED);
        if (got == 2 || call == nth)
            return code;
    }
    return 0;
}

int standin_enter(const char *name) {
    config_read();
    int code = standin_injected(name);
    if (code)
        return code;
    bool early = strncmp(name, "nvmlInit", 8) == 0;
    return early || __atomic_load_n(&users, __ATOMIC_ACQUIRE) ? 0 : NVML_ERROR_UNINITIALIZED;
}

int standin_unmodelled(const char *name) {
    int code = standin_enter(name);
    return code ? code : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t model_nvmlInit_v2(void) {
    const struct config *config = config_read();
    pthread_mutex_lock(&lock);
    nvml_cards = config->cards;
    for (int at = 0; at < nvml_cards; at++) {
        cards[at].index = at;
        if (!cards[at].open)
            cards[at].open = card_open(&cards[at].hold, &config->card[at]);
        if (config->card[at].instance && !cards[at].parent)
            open_parent(at);
    }
    __atomic_add_fetch(&users, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    return NVML_SUCCESS;
}
ALIAS(nvmlInit, nvmlInit_v2);
nvmlReturn_t model_nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    return model_nvmlInit_v2();
}
/* The files stay open: closing one would drop the record locks of a CUDA library in the same process. */
nvmlReturn_t model_nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    __atomic_sub_fetch(&users, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    return NVML_SUCCESS;
}

static bool lost(const struct card_config *config) {
    char path[384];
    snprintf(path, sizeof path, "%s/lost-%s", config_read()->state, config->uuid_text);
    return config->lost || access(path, F_OK) == 0;
}

nvmlReturn_t nvml_find(nvmlDevice_t handle) {
    bool whole = handle >= cards && handle < cards + nvml_cards;
    if (!whole && (handle < parents || handle >= parents + nvml_cards || !handle->instance))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!handle->open)
        return NVML_ERROR_OPERATING_SYSTEM;
    return lost(handle->hold.config) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}
nvmlReturn_t nvml_look(nvmlDevice_t handle) {
    nvmlReturn_t result = nvml_find(handle);
    if (result != NVML_SUCCESS)
        return result;
    pthread_mutex_lock(&lock);
    card_lock(&handle->hold);
    card_reap(&handle->hold);
    card_advance(&handle->hold, now_ns());
    return NVML_SUCCESS;
}
void nvml_done(nvmlDevice_t handle) {
    card_unlock(&handle->hold);
    pthread_mutex_unlock(&lock);
}

static int64_t wall_minus_monotonic(void) {
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    return wall.tv_sec * 1000000000LL + wall.tv_nsec - now_ns();
}
unsigned long long nvml_time_us(int64_t monotonic_ns) {
    return (unsigned long long)((monotonic_ns + wall_minus_monotonic()) / 1000);
}
int64_t nvml_monotonic_ns(unsigned long long time_us) {
    return time_us > INT64_MAX / 1000 ? INT64_MAX : (int64_t)time_us * 1000 - wall_minus_monotonic();
}

nvmlReturn_t nvml_copy(char *to, unsigned int length, const char *text) {
    if (!to)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (length <= strlen(text))
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(to, text, strlen(text) + 1);
    return NVML_SUCCESS;
}

/* ---- the system ---------------------------------------------------------------------------------------------------
 */

nvmlReturn_t model_nvmlSystemGetDriverVersion(char *text, unsigned int length) {
    const char *driver = config_read()->driver;
    return nvml_copy(text, length, driver[0] ? driver : standin_driver_version);
}
nvmlReturn_t model_nvmlSystemGetNVMLVersion(char *text, unsigned int length) {
    char version[64];
    snprintf(version, sizeof version, "%d.%s", standin_cuda_version / 1000, standin_driver_version);
    return nvml_copy(text, length, version);
}
nvmlReturn_t model_nvmlSystemGetCudaDriverVersion_v2(int *version) {
    if (!version)
        return NVML_ERROR_INVALID_ARGUMENT;
    *version = standin_cuda_version;
    return NVML_SUCCESS;
}
ALIAS(nvmlSystemGetCudaDriverVersion, nvmlSystemGetCudaDriverVersion_v2);

nvmlReturn_t model_nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length) {
    char path[64], text[256] = "";
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return NVML_ERROR_NOT_FOUND;
    size_t got = fread(text, 1, sizeof text - 1, file);
    text[got] = '\0';
    fclose(file);
    return nvml_copy(name, length, text);
}

/* ---- handles --------------------------------------------------------------------------------------------------------
 */

nvmlReturn_t model_nvmlDeviceGetCount_v2(unsigned int *count) {
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = (unsigned int)nvml_cards;
    return NVML_SUCCESS;
}
ALIAS(nvmlDeviceGetCount, nvmlDeviceGetCount_v2);

static nvmlReturn_t give(int index, nvmlDevice_t *out) {
    *out = cards[index].parent ? cards[index].parent : &cards[index];
    return nvml_find(*out);
}
nvmlReturn_t model_nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *out) {
    if (!out || index >= (unsigned int)nvml_cards)
        return NVML_ERROR_INVALID_ARGUMENT;
    return give((int)index, out);
}
ALIAS(nvmlDeviceGetHandleByIndex, nvmlDeviceGetHandleByIndex_v2);
nvmlReturn_t model_nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out) {
    if (!out || !uuid)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int at = 0; at < nvml_cards; at++)
        if (strcmp(cards[at].hold.config->uuid_text, uuid) == 0)
            return nvml_find(*out = &cards[at]);
        else if (cards[at].parent && strcmp(parent_config[at].uuid_text, uuid) == 0)
            return give(at, out);
    return NVML_ERROR_NOT_FOUND;
}
nvmlReturn_t model_nvmlDeviceGetHandleByPciBusId_v2(const char *text, nvmlDevice_t *out) {
    unsigned int domain, bus;
    if (!out || !text || sscanf(text, "%x:%x", &domain, &bus) != 2)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int at = 0; at < nvml_cards; at++)
        if (cards[at].hold.config->pci_bus == bus)
            return give(at, out);
    return NVML_ERROR_NOT_FOUND;
}
ALIAS(nvmlDeviceGetHandleByPciBusId, nvmlDeviceGetHandleByPciBusId_v2);

const char *model_nvmlErrorString(nvmlReturn_t code) {
    static const char *const texts[] = {
        "Success",
        "Uninitialized",
        "Invalid Argument",
        "Not Supported",
        "Insufficient Permissions",
        "Already Initialized",
        "Not Found",
        "Insufficient Size",
        "Insufficient External Power",
        "Driver Not Loaded",
        "Timeout",
        "Interrupt Request Issue",
        "NVML Shared Library Not Found",
        "Function Not Found",
        "Corrupted infoROM",
        "GPU is lost",
        "GPU requires reset",
        "The operating system has blocked the request",
        "Driver/library version mismatch",
        "In use by another client",
        "Insufficient Memory",
        "No Data",
    };
    unsigned int at = (unsigned int)code;
    return at < sizeof texts / sizeof texts[0] ? texts[at] : "Unknown Error";
}
