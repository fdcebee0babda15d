/* LD_PRELOAD library: learns the channel groups that the driver makes for this process, and does with them what the lines
 * in one pipe say; answers stand in another. Nothing but this process's own groups is ever named to the driver.
 *
 * Question: may a process without privileges set the timeslice of its own groups, leave the card in the middle of a kernel
 * and come back, and how fast? NVIDIA's open kernel modules (515 to 595, ctrla06c.h) say that commands 0xa06c0101, 0103,
 * 0104 and 0105 need no right, 0107 CAP_SYS_NICE; on cards with a GSP the firmware's own check is not in the sources.
 *
 *   count | slice US | facts | off | on | preempt | level N     answer: STATUS MICROSECONDS FIGURE, of the slowest group
 *
 * An "off" that no other line follows within a second ends by itself.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { MAGIC = 'F', CONTROL = 0x2a, ALLOC = 0x2b, CLASS_GROUP = 0xa06c, MOST = 256, MOST_OFF_MS = 1000 };
enum { SCHEDULE = 0xa06c0101, SET_SLICE = 0xa06c0103, GET_SLICE = 0xa06c0104, PREEMPT = 0xa06c0105, LEVEL = 0xa06c0107 };
enum { LAST_COMPUTE_ENGINE = 8, PREEMPT_US = 100000 };

struct alloc { /* what both layouts of the call begin with */
    uint32_t client, parent, object, class_;
    uint64_t parameters;
};
struct control {
    uint32_t client, object, command, flags;
    uint64_t parameters;
    uint32_t size, status;
};
struct group {
    uint32_t client, object, engine;
    int fd;
};

static struct group groups[MOST];
static int count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int (*next_ioctl)(int, unsigned long, ...);

/* Where the status stands: the last word but for the padding of the longer layout. */
static uint32_t alloc_status(const void *call, unsigned long request) {
    uint32_t status;
    size_t size = _IOC_SIZE(request), at = size == 48 ? 40 : size - 4;
    memcpy(&status, (const char *)call + at, sizeof status);
    return status;
}

static void learn(int fd, unsigned long request, const void *call) {
    struct alloc made;
    uint32_t engine = 0;
    memcpy(&made, call, sizeof made);
    if (made.class_ != CLASS_GROUP || alloc_status(call, request) != 0)
        return;
    if (made.parameters)
        memcpy(&engine, (const char *)(uintptr_t)made.parameters + 12, sizeof engine);
    pthread_mutex_lock(&lock);
    if (count < MOST)
        groups[count++] = (struct group){made.client, made.object, engine, fd};
    pthread_mutex_unlock(&lock);
}

int ioctl(int fd, unsigned long request, ...) {
    va_list rest;
    va_start(rest, request);
    void *call = va_arg(rest, void *);
    va_end(rest);
    if (!next_ioctl)
        *(void **)&next_ioctl = dlsym(RTLD_NEXT, "ioctl");
    int result = next_ioctl(fd, request, call);
    if (!result && call && _IOC_TYPE(request) == MAGIC && _IOC_NR(request) == ALLOC &&
        _IOC_SIZE(request) >= sizeof(struct alloc))
        learn(fd, request, call);
    return result;
}

static uint32_t command(const struct group *group, uint32_t number, void *parameters, uint32_t size, double *most_us) {
    struct control call = {group->client, group->object, number, 0, (uintptr_t)parameters, size, UINT32_MAX};
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    int result = next_ioctl(group->fd, _IOWR(MAGIC, CONTROL, struct control), &call);
    clock_gettime(CLOCK_MONOTONIC, &end);
    double us = (double)(end.tv_sec - begin.tv_sec) * 1e6 + (double)(end.tv_nsec - begin.tv_nsec) / 1e3;
    *most_us = us > *most_us ? us : *most_us;
    return result ? UINT32_MAX : call.status;
}

static uint32_t obey(const struct group *group, const char *verb, uint64_t number, double *us, uint64_t *figure) {
    struct {
        uint8_t on, skip_submit, skip_enable;
    } schedule = {(uint8_t)(strcmp(verb, "on") == 0), 0, 0};
    struct {
        uint8_t wait, manual;
        uint32_t timeout_us;
    } preempt = {1, 1, PREEMPT_US};
    uint32_t level = (uint32_t)number;
    if (strcmp(verb, "off") == 0 || strcmp(verb, "on") == 0)
        return command(group, SCHEDULE, &schedule, sizeof schedule, us);
    if (strcmp(verb, "slice") == 0)
        return command(group, SET_SLICE, &number, sizeof number, us);
    if (strcmp(verb, "facts") == 0)
        return command(group, GET_SLICE, figure, sizeof *figure, us);
    if (strcmp(verb, "preempt") == 0)
        return command(group, PREEMPT, &preempt, sizeof preempt, us);
    return strcmp(verb, "level") == 0 ? command(group, LEVEL, &level, sizeof level, us) : UINT32_MAX;
}

/* All groups that compute; the first status that is not 0. */
static void answer(int to, const char *verb, uint64_t number) {
    uint32_t status = 0;
    double us = 0;
    uint64_t figure = 0;
    pthread_mutex_lock(&lock);
    int all = count, compute = 0;
    pthread_mutex_unlock(&lock);
    for (int at = 0; at < all; at++) {
        if (groups[at].engine > LAST_COMPUTE_ENGINE)
            continue;
        compute++;
        uint32_t one = strcmp(verb, "count") == 0 ? 0 : obey(&groups[at], verb, number, &us, &figure);
        status = status ? status : one;
    }
    if (strcmp(verb, "count") == 0)
        figure = (uint64_t)compute;
    /* Not dprintf: the C library would flush its buffer once more where the program ends meanwhile. */
    char line[64];
    int length = snprintf(line, sizeof line, "%u %.1f %llu\n", status, us, (unsigned long long)figure);
    if (to >= 0 && write(to, line, (size_t)length) < 0)
        return;
}

static void *listen_for_lines(void *unused) {
    const char *in = getenv("GROUPS_IN"), *out = getenv("GROUPS_OUT");
    FILE *from = in ? fopen(in, "r") : NULL;
    int to = out ? open(out, O_WRONLY | O_CLOEXEC) : -1;
    char line[64], verb[16] = "";
    unsigned long long number;
    if (!from || to < 0)
        return unused;
    setvbuf(from, NULL, _IONBF, 0);
    sigset_t broken; /* whoever asked may be gone: that ends no program */
    sigemptyset(&broken);
    sigaddset(&broken, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &broken, NULL);
    for (;;) {
        struct pollfd waiting = {.fd = fileno(from), .events = POLLIN};
        if (strcmp(verb, "off") == 0 && poll(&waiting, 1, MOST_OFF_MS) == 0)
            answer(-1, "on", 0);
        if (!fgets(line, sizeof line, from))
            break;
        number = 0;
        if (sscanf(line, "%15s %llu", verb, &number) >= 1)
            answer(to, verb, number);
    }
    answer(-1, "on", 0);
    return unused;
}

__attribute__((constructor)) static void begin(void) {
    pthread_t thread;
    *(void **)&next_ioctl = dlsym(RTLD_NEXT, "ioctl");
    if (getenv("GROUPS_IN") && pthread_create(&thread, NULL, listen_for_lines, NULL) == 0)
        pthread_detach(thread);
}
