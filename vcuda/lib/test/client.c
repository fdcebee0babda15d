/* The clients' common part: finding the driver, and the command line. */
#define _GNU_SOURCE
#include "client.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct driver driver;

void must(int result, const char *what) {
    if (result == 0)
        return;
    fprintf(stderr, "%s failed with CUDA error %d\n", what, result);
    exit(result == 2 ? 2 : 1);
}

double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

const char *option(int argc, char **argv, const char *name, const char *otherwise) {
    for (int at = 2; at + 1 < argc; at++)
        if (strcmp(argv[at], name) == 0)
            return argv[at + 1];
    return otherwise;
}
long option_number(int argc, char **argv, const char *name, long otherwise) {
    const char *text = option(argc, argv, name, NULL);
    return text ? strtol(text, NULL, 0) : otherwise;
}

static void load(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    int (*resolve)(const char *, void **, int, unsigned long long, int *) = NULL;
    if (!library) {
        fprintf(stderr, "no CUDA driver: %s\n", dlerror());
        exit(1);
    }
    *(void **)&resolve = dlsym(library, "cuGetProcAddress_v2");
    if (!resolve) {
        fprintf(stderr, "the CUDA driver is older than 12.0: it has no cuGetProcAddress_v2\n");
        exit(1);
    }
#define CLIENT_LOAD(name, version, parameters)                                                                         \
    if (resolve(#name, (void **)&driver.name, version, 0, NULL) != 0 || !driver.name) {                                \
        fprintf(stderr, "the CUDA driver has no " #name "\n");                                                         \
        exit(1);                                                                                                       \
    }
    CLIENT_FUNCTIONS(CLIENT_LOAD)
#undef CLIENT_LOAD
}

void use_card(int ordinal) {
    int device;
    void *context;
    load();
    must(driver.cuInit(0), "cuInit");
    must(driver.cuDeviceGet(&device, ordinal), "cuDeviceGet");
    must(driver.cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    must(driver.cuCtxSetCurrent(context), "cuCtxSetCurrent");
}

static const char usage[] =
    "vcuda-client alloc-to-limit [--way alloc|pitch|async|vmm|array|managed] [--step MIB] [--most MIB] [--hold S]\n"
    "    allocate until the driver refuses; say how much it was\n"
    "vcuda-client spin [--us N] [--seconds S] [--mode sync|stream|graph] [--grid BLOCKS] [--windows S]\n"
    "    launch kernels of N microseconds; say which share of the time they ran\n"
    "vcuda-client paced [--us N] [--every N] [--jitter PERCENT] [--streams N] [--wait N] [--seconds S]\n"
    "  [--trace FILE] [--origin TEXT]\n"
    "    launch a kernel, think for EVERY microseconds, and again; wait for the card after every WAIT launches\n"
    "vcuda-client serve [--us N] [--kernels N] [--rate N] [--seconds S]\n"
    "    RATE requests a second at random, of so many kernels each; say how long they took from their arrival\n"
    "vcuda-client worker [--us N[,N...]] [--kernels N] [--names N] [--streams N] [--pause US]\n"
    "    make requests of so many kernels for each line \"run SECONDS RATE SEED\" that it reads; say how they went\n"
    "vcuda-client leave [--how return|exit|kill|thread] [--kernels N] [--us N]\n"
    "    end with work in flight, and with a thread that launches\n"
    "vcuda-client capture [--mode global|thread|relaxed] [--rounds N] [--us N]\n"
    "    capture graphs beside a thread that launches; say how many failed\n"
    "vcuda-client info\n"
    "    the cards and their processes, as NVML and CUDA show them\n"
    "all: [--card N]\n";

int main(int argc, char **argv) {
    const char *command = argc > 1 ? argv[1] : "";
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (strcmp(command, "alloc-to-limit") == 0)
        return run_alloc(argc, argv);
    if (strcmp(command, "spin") == 0)
        return run_spin(argc, argv);
    if (strcmp(command, "paced") == 0)
        return run_paced(argc, argv);
    if (strcmp(command, "serve") == 0)
        return run_serve(argc, argv);
    if (strcmp(command, "worker") == 0)
        return run_worker(argc, argv);
    if (strcmp(command, "leave") == 0)
        return run_leave(argc, argv);
    if (strcmp(command, "capture") == 0)
        return run_capture(argc, argv);
    if (strcmp(command, "info") == 0)
        return run_info(argc, argv);
    fputs(usage, stderr);
    return 64;
}
