#define _GNU_SOURCE
#include "descriptor.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOWEST 500

int descriptor_open(const char *path, int flags) {
    int low = open(path, flags | O_CLOEXEC);
    int fd = low < 0 ? -1 : fcntl(low, F_DUPFD_CLOEXEC, LOWEST);
    if (fd < 0)
        return low;
    close(low);
    return fd;
}

/* stat and fstat are newer symbols than we may use; the calls are not. */
bool descriptor_file(int fd, const char *path, struct descriptor_file *file) {
    struct stat found;
    if (syscall(SYS_newfstatat, fd, path, &found, *path ? 0 : AT_EMPTY_PATH) != 0)
        return false;
    file->device = found.st_dev;
    file->inode = found.st_ino;
    return true;
}

bool descriptor_is(int fd, const struct descriptor_file *file) {
    struct descriptor_file found;
    return descriptor_file(fd, "", &found) && found.device == file->device && found.inode == file->inode;
}

void descriptor_close(int fd, const struct descriptor_file *file) {
    if (descriptor_is(fd, file))
        close(fd);
}
