#define _GNU_SOURCE
#include "page.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct vcuda_page_view *vcuda_page_view;

uint64_t vcuda_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

struct vcuda_usage *vcuda_usage(void) {
    struct vcuda_page_view *view = __atomic_load_n(&vcuda_page_view, __ATOMIC_ACQUIRE);
    return view ? view->usage : NULL;
}

struct vcuda_slot *vcuda_slot(void) {
    struct vcuda_page_view *view = __atomic_load_n(&vcuda_page_view, __ATOMIC_ACQUIRE);
    return view ? view->slot : NULL;
}

const char *page_map(const char *path, size_t size, bool writable, void **mapped, int *error) {
    int fd = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    if (fd < 0) {
        *error = errno;
        return "cannot be opened";
    }
    const char *fault = NULL;
    off_t length = lseek(fd, 0, SEEK_END);
    if (length != (off_t)size) {
        *error = 0;
        fault = length < (off_t)size ? "is too short" : "is too long";
    } else {
        *mapped = mmap(NULL, size, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
        if (*mapped == MAP_FAILED) {
            *error = errno;
            fault = "cannot be mapped";
        }
    }
    close(fd);
    return fault;
}

const char *page_judge_usage(const struct vcuda_usage *usage) {
    if (__atomic_load_n(&usage->magic, __ATOMIC_RELAXED) != VCUDA_USAGE_MAGIC)
        return "is no usage page";
    if (__atomic_load_n(&usage->abi_major, __ATOMIC_RELAXED) != VCUDA_ABI_MAJOR)
        return "has the format of another version";
    return __atomic_load_n(&usage->size, __ATOMIC_RELAXED) != VCUDA_USAGE_SIZE ? "says that it has another size" : NULL;
}
