/* The cards and who uses them, as NVML and CUDA show them: what nvidia-smi would print, in fewer lines. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "client.h"

enum { NAME = 96, PROCESSES = 64 };

struct memory {
    unsigned long long total, free, used;
};
struct rates {
    unsigned int gpu, memory;
};
struct process {
    unsigned int pid;
    unsigned long long used;
    unsigned int gpu_instance, compute_instance;
};

#define NVML_FUNCTIONS(F)                                                                                              \
    F(nvmlInit_v2, (void))                                                                                             \
    F(nvmlShutdown, (void))                                                                                            \
    F(nvmlSystemGetDriverVersion, (char *, unsigned int))                                                              \
    F(nvmlDeviceGetCount_v2, (unsigned int *))                                                                         \
    F(nvmlDeviceGetHandleByIndex_v2, (unsigned int, void **))                                                          \
    F(nvmlDeviceGetMigDeviceHandleByIndex, (void *, unsigned int, void **))                                            \
    F(nvmlDeviceGetName, (void *, char *, unsigned int))                                                               \
    F(nvmlDeviceGetUUID, (void *, char *, unsigned int))                                                               \
    F(nvmlDeviceGetMemoryInfo, (void *, struct memory *))                                                              \
    F(nvmlDeviceGetUtilizationRates, (void *, struct rates *))                                                         \
    F(nvmlDeviceGetPowerUsage, (void *, unsigned int *))                                                               \
    F(nvmlDeviceGetTemperature, (void *, int, unsigned int *))                                                         \
    F(nvmlDeviceGetComputeRunningProcesses_v3, (void *, unsigned int *, struct process *))

#define DECLARE(name, parameters) static int(*name) parameters;
NVML_FUNCTIONS(DECLARE)

static void load_nvml(void) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "no NVML: %s\n", dlerror());
        exit(1);
    }
#define LOAD(name, parameters)                                                                                         \
    if (!(*(void **)&name = dlsym(library, #name))) {                                                                  \
        fprintf(stderr, "NVML has no " #name "\n");                                                                    \
        exit(1);                                                                                                       \
    }
    NVML_FUNCTIONS(LOAD)
}

static void show(const char *place, void *card) {
    char name[NAME] = "?", uuid[NAME] = "?";
    struct memory memory = {0, 0, 0};
    struct rates rates = {0, 0};
    struct process process[PROCESSES];
    unsigned int power = 0, temperature = 0, count = PROCESSES;
    nvmlDeviceGetName(card, name, NAME);
    nvmlDeviceGetUUID(card, uuid, NAME);
    nvmlDeviceGetMemoryInfo(card, &memory);
    nvmlDeviceGetUtilizationRates(card, &rates);
    nvmlDeviceGetPowerUsage(card, &power);
    nvmlDeviceGetTemperature(card, 0, &temperature);
    printf("| %s  %-24s %6lluMiB / %6lluMiB  %3u%%  %2uC %3uW  %s\n", place, name, memory.used >> 20,
           memory.total >> 20, rates.gpu, temperature, power / 1000, uuid);
    if (nvmlDeviceGetComputeRunningProcesses_v3(card, &count, process) != 0)
        return;
    for (unsigned int at = 0; at < count; at++)
        printf("|       process %u uses %lluMiB\n", process[at].pid, process[at].used >> 20);
}

/* A card, and the MIG instances that the container sees of it. */
static void show_card(unsigned int index) {
    char place[NAME];
    void *card, *instance;
    snprintf(place, sizeof place, "%2u", index);
    int result = nvmlDeviceGetHandleByIndex_v2(index, &card);
    if (result != 0) {
        printf("| %s  not reachable: NVML error %d\n", place, result);
        return;
    }
    show(place, card);
    for (unsigned int at = 0; nvmlDeviceGetMigDeviceHandleByIndex(card, at, &instance) == 0; at++)
        show("  ", instance);
}

static void show_cuda(int ordinal) {
    size_t left, total;
    int version = 0;
    use_card(ordinal);
    must(driver.cuDriverGetVersion(&version), "cuDriverGetVersion");
    must(driver.cuMemGetInfo(&left, &total), "cuMemGetInfo");
    printf("| CUDA %d.%d  free %zuMiB of %zuMiB\n", version / 1000, version % 1000 / 10, left >> 20, total >> 20);
}

int run_info(int argc, char **argv) {
    char version[NAME] = "?";
    unsigned int count = 0;
    load_nvml();
    int result = nvmlInit_v2();
    if (result != 0) {
        fprintf(stderr, "nvmlInit_v2 failed with NVML error %d\n", result);
        return 1;
    }
    nvmlSystemGetDriverVersion(version, NAME);
    nvmlDeviceGetCount_v2(&count);
    printf("| driver %s, %u card%s\n", version, count, count == 1 ? "" : "s");
    for (unsigned int index = 0; index < count; index++)
        show_card(index);
    show_cuda((int)option_number(argc, argv, "--card", 0));
    nvmlShutdown();
    return 0;
}
