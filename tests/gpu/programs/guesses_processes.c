/* The end of a process: see guesses.h. */
#include "guesses.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Ends before its child, which was forked with all of the driver's descriptors and touches none. */
static void killed_with_a_child(void) {
    enum { SETTLE_MS = 500 };
    int ready;
    pid_t child = 0;
    pid_t victim = run_other("victim", &ready);
    if (read(ready, &child, sizeof child) != sizeof child)
        must(1, "the victim");
    kill(victim, SIGKILL);
    waitpid(victim, NULL, 0);
    nanosleep(&(struct timespec){.tv_nsec = SETTLE_MS * 1000000L}, NULL);
    taken("its_child_alive");
    kill(child, SIGKILL);
    nanosleep(&(struct timespec){.tv_nsec = SETTLE_MS * 1000000L}, NULL);
    taken("its_child_killed_too");
}
static void be_killed(int ready) {
    allocate(64 * MIB);
    pid_t child = fork();
    if (child == 0)
        for (;;)
            pause();
    if (write(ready, &child, sizeof child) == sizeof child)
        for (;;)
            pause();
}

/* In a handler that was registered before cuInit, and so runs after what that registered. */
static int (*ask_at_exit)(size_t *, size_t *);
static void at_exit(void) {
    size_t left, total;
    if (ask_at_exit)
        answer("cuMemGetInfo_at_exit", ask_at_exit(&left, &total));
}
static void called_at_exit(void) {
    FIND(cuMemGetInfo, 3020, (size_t *, size_t *));
    ask_at_exit = cuMemGetInfo;
}
static void forked(void) {
    FIND(cuMemGetInfo, 3020, (size_t *, size_t *));
    FIND(cuInit, 2000, (unsigned));
    for (int again = 0; again < 2; again++) {
        int status = 0;
        pid_t child = fork();
        if (child == 0) {
            size_t left, total;
            alarm(5);
            _exit(again ? cuInit(0) : cuMemGetInfo(&left, &total));
        }
        waitpid(child, &status, 0);
        answer(again ? "cuInit_in_a_child" : "cuMemGetInfo_in_a_child",
               WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
    }
}

/* ---- what NVML says of processes: by which numbers, and whose memory is what one exported and another holds */

enum { SHARED_MIB = 256, LISTED_MOST = 64 };
struct listed {
    unsigned int pid;
    unsigned long long used;
    unsigned int instance, compute_instance;
};
static int (*list_processes)(void *, unsigned int *, struct listed *);
static void *nvml_device;

static void open_nvml(void) {
    int (*init)(void), (*device_by_id)(const char *, void **);
    FIND(cuDeviceGetPCIBusId, 4010, (char *, int, int));
    char id[32];
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    *(void **)&init = nvml ? dlsym(nvml, "nvmlInit_v2") : NULL;
    *(void **)&device_by_id = nvml ? dlsym(nvml, "nvmlDeviceGetHandleByPciBusId_v2") : NULL;
    *(void **)&list_processes = nvml ? dlsym(nvml, "nvmlDeviceGetComputeRunningProcesses_v3") : NULL;
    must(!init || !device_by_id || !list_processes, "libnvidia-ml.so.1");
    must(cuDeviceGetPCIBusId(id, sizeof id, device), "cuDeviceGetPCIBusId");
    must(init(), "nvmlInit_v2");
    must(device_by_id(id, &nvml_device), "nvmlDeviceGetHandleByPciBusId_v2");
}
/* MiB of a process; -1: it is not in the list. */
static long long listed_mib(pid_t pid) {
    struct listed listed[LISTED_MOST];
    unsigned int count = LISTED_MOST;
    must(list_processes(nvml_device, &count, listed), "nvmlDeviceGetComputeRunningProcesses_v3");
    for (unsigned int at = 0; at < count; at++)
        if (listed[at].pid == (unsigned int)pid)
            return (long long)(listed[at].used / MIB);
    return -1;
}
/* Takes the descriptor that its maker left open for it, and holds what that gives. */
static void hold_exported(int ready) {
    FIND(cuMemImportFromShareableHandle, 10020, (unsigned long long *, void *, int));
    unsigned long long imported;
    int descriptor = atoi(getenv("EXPORTED"));
    must(cuMemImportFromShareableHandle(&imported, (void *)(uintptr_t)descriptor, BY_DESCRIPTOR), "the import");
    close(descriptor);
    if (write(ready, "", 1) == 1)
        for (;;)
            pause();
}
static void nvml_processes(void) {
    FIND(cuMemCreate, 10020, (unsigned long long *, size_t, const void *, unsigned long long));
    FIND(cuMemExportToShareableHandle, 10020, (void *, unsigned long long, int, unsigned long long));
    FIND(cuMemRelease, 10020, (unsigned long long));
    struct memory_properties properties = {.type = PINNED, .handle_types = BY_DESCRIPTOR, .location = {DEVICE, device}};
    unsigned long long handle;
    char number[16], byte;
    int descriptor = -1, ready;
    open_nvml();
    long long before = listed_mib(getpid());
    answer("listed_by_the_number_it_has_here", before >= 0);
    if (before < 0)
        return;
    must(cuMemCreate(&handle, SHARED_MIB * (size_t)MIB, &properties, 0), "cuMemCreate");
    must(cuMemExportToShareableHandle(&descriptor, handle, BY_DESCRIPTOR, 0), "cuMemExportToShareableHandle");
    snprintf(number, sizeof number, "%d", descriptor);
    setenv("EXPORTED", number, 1);
    must(fcntl(descriptor, F_SETFD, 0), "fcntl");
    pid_t holder = run_other("holder", &ready);
    must(read(ready, &byte, 1) != 1, "the holder");
    answer("maker_has_it", listed_mib(getpid()) - before >= SHARED_MIB);
    answer("holder_has_it", listed_mib(holder) >= SHARED_MIB);
    close(descriptor);
    must(cuMemRelease(handle), "cuMemRelease");
    answer("maker_has_it_after_its_release", listed_mib(getpid()) - before >= SHARED_MIB);
    answer("holder_has_it_then", listed_mib(holder) >= SHARED_MIB);
    kill(holder, SIGKILL);
    waitpid(holder, NULL, 0);
}

static const struct question questions[] = {
    {"killed_with_a_child", killed_with_a_child},
    {"called_at_exit", called_at_exit},
    {"forked", forked},
    {"nvml_processes", nvml_processes},
};

int main(int argc, char **argv) {
    if (argc == 3) {
        prepare();
        (strcmp(argv[1], "holder") ? be_killed : hold_exported)(atoi(argv[2]));
        return 1;
    }
    atexit(at_exit);
    return ask(questions, sizeof questions / sizeof *questions, argc, argv);
}
