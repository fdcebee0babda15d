/* Whose memory a process may ask the driver for by guessed handles: see guesses.h.
 *
 * The driver may let a client duplicate an object of another one that runs as "the same user". Containers without user
 * namespaces that both run as root are that. So a process takes the handles of its own memory from what its libcuda
 * asks the kernel for, and another process asks for a duplicate of it: as the same user, and as another one. Numbers
 * and layouts are those of the driver's open kernel modules (nvos.h, nv_escape.h, 515 to 595). */
#define _GNU_SOURCE
#include "guesses.h"

#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { MAGIC = 'F', DUP_OBJECT = 0x34, RM_ALLOC = 0x2b, MEMORY = 0x40, CLIENT = 0x41, DEVICE_0 = 0x80 };
enum { OTHER_UID = 12345, NO_ANSWER = -1 };

struct alloc {
    uint32_t client, parent, object, kind;
    uint64_t params, rights;
    uint32_t params_size, flags, status, rest;
};
struct device_params {
    uint32_t id, share, target_client, target_device, flags;
    uint64_t sizes[3];
    uint32_t mode;
};
struct duplicate {
    uint32_t client, parent, object, from_client, from_object, flags, status;
};

static struct handles {
    uint32_t client, object;
} newest;

/* Stands before the C library's, so that libcuda calls this one. */
int ioctl(int file, unsigned long request, ...) {
    va_list rest;
    va_start(rest, request);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    int result = (int)syscall(SYS_ioctl, file, request, argument);
    struct alloc alloc;
    if (result == 0 && argument && _IOC_TYPE(request) == MAGIC && _IOC_NR(request) == RM_ALLOC) {
        memcpy(&alloc, argument, 16);
        if (alloc.kind == MEMORY)
            newest = (struct handles){alloc.client, alloc.object};
    }
    return result;
}

static void be_robbed(int ready) {
    prepare();
    allocate(64 * MIB);
    if (write(ready, &newest, sizeof newest) == sizeof newest)
        for (;;)
            pause();
}

static long long make(int control, uint32_t client, uint32_t parent, uint32_t *object, uint32_t kind, void *params,
                      uint32_t size) {
    struct alloc alloc = {client, parent, *object, kind, (uintptr_t)params, 0, size, 0, 0, 0};
    if (syscall(SYS_ioctl, control, _IOWR(MAGIC, RM_ALLOC, struct alloc), &alloc) != 0)
        return NO_ANSWER;
    *object = alloc.object;
    return alloc.status;
}

/* Ask for the memory of whoever has these handles: the driver's status, 0 if it is given. */
static long long rob(const struct handles *from) {
    int control = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC), card = open("/dev/nvidia0", O_RDWR | O_CLOEXEC);
    uint32_t client = 0, parent = 0xcaf10001;
    struct device_params params = {0};
    if (control < 0 || card < 0 || make(control, 0, 0, &client, CLIENT, NULL, 0) != 0)
        return NO_ANSWER;
    params.share = client;
    if (make(control, client, client, &parent, DEVICE_0, &params, sizeof params) != 0)
        return NO_ANSWER;
    struct duplicate wanted = {client, parent, 0xcaf10002, from->client, from->object, 0, 0};
    if (syscall(SYS_ioctl, control, _IOWR(MAGIC, DUP_OBJECT, struct duplicate), &wanted) != 0)
        return NO_ANSWER;
    return wanted.status;
}

/* In a child, since it does not come back from being another user. */
static long long robbed_as(uid_t user, const struct handles *from) {
    int ends[2];
    long long status = NO_ANSWER;
    must(pipe(ends), "pipe");
    pid_t robber = fork();
    if (robber == 0) {
        status = user != getuid() && setuid(user) != 0 ? NO_ANSWER : rob(from);
        _exit(write(ends[1], &status, sizeof status) != sizeof status);
    }
    must(read(ends[0], &status, sizeof status) != sizeof status, "the other process");
    waitpid(robber, NULL, 0);
    return status;
}

static void told(const char *who, long long status) {
    char what[64];
    snprintf(what, sizeof what, "%s_is_given_it", who);
    if (status != NO_ANSWER)
        answer(what, status == 0);
}

/* What is not modelled is guessed: nobody is given another process's memory. */
static void memory_of_the_same_user(void) {
    struct handles found = {0};
    int ready;
    pid_t victim = run_other("victim", &ready);
    must(read(ready, &found, sizeof found) != sizeof found, "the victim");
    int is_modelled = getenv("VCUDA_STANDIN_STATE") != NULL;
    if (!is_modelled && !found.object)
        not_asked("libcuda made its memory in a way that was not seen");
    else {
        told("same_user", is_modelled ? 1 : robbed_as(getuid(), &found));
        told("other_user", is_modelled ? 1 : robbed_as(OTHER_UID, &found));
    }
    kill(victim, SIGKILL);
    waitpid(victim, NULL, 0);
}

static const struct question questions[] = {
    {"memory_of_the_same_user", memory_of_the_same_user},
};

int main(int argc, char **argv) {
    if (argc == 3) {
        be_robbed(atoi(argv[2]));
        return 1;
    }
    return ask(questions, sizeof questions / sizeof questions[0], argc, argv);
}
