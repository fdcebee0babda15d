#define _GNU_SOURCE
#include "keeper.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FILES_MOST 16384 /* five thousand containers */

static struct {
    dev_t device;
    ino_t inode;
    int file;
} kept[FILES_MOST];
static int count;

static bool is_kept(const struct stat *status) {
    for (int i = 0; i < count; i++)
        if (kept[i].inode == status->st_ino && kept[i].device == status->st_dev)
            return true;
    return false;
}

/* What cannot be opened now is tried again: a container may hold a lease on it already. */
static void keep(int directory, const char *name) {
    struct stat status;
    if (count == FILES_MOST || fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISREG(status.st_mode) || is_kept(&status))
        return;
    int file = openat(directory, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0)
        return;
    if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
        close(file);
        return;
    }
    kept[count].device = status.st_dev;
    kept[count].inode = status.st_ino;
    kept[count++].file = file;
}

static void keep_files(int root, const char *name) {
    int directory = openat(root, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *files = directory < 0 ? NULL : fdopendir(directory);
    if (!files)
        return;
    for (const struct dirent *entry; (entry = readdir(files));)
        if (entry->d_name[0] != '.') /* nor drafts, which get their name when they are whole */
            keep(directory, entry->d_name);
    closedir(files);
}

static void keep_all(const char *path) {
    DIR *root = opendir(path);
    if (!root)
        return; /* the agent makes it */
    for (const struct dirent *entry; (entry = readdir(root));)
        if (entry->d_name[0] != '.')
            keep_files(dirfd(root), entry->d_name);
    closedir(root);
}

static void drop_removed(void) {
    struct stat status;
    for (int i = 0; i < count; i++)
        if (fstat(kept[i].file, &status) != 0 || !status.st_nlink) {
            close(kept[i].file);
            kept[i--] = kept[--count];
        }
}

void keep_open(const char *path, const volatile sig_atomic_t *is_ending) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    while (!*is_ending) {
        drop_removed();
        keep_all(path);
        nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
    }
}
