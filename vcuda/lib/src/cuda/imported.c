#define _GNU_SOURCE
#include "cuda/imported.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "fork.h"
#include "lock.h"

/* Out of the way of programs that count on low numbers. */
#define LOWEST_DESCRIPTOR 500
#define LOWEST_OF_ALL 3

/* Copies of descriptors: a child of fork must not keep them open. */
struct held {
    struct held *next;
    int fd;
};

static bool busy; /* lock of the list */
static struct held *all;

static void forget_in_child(void) {
    for (struct held *held = all; held; held = held->next)
        close(held->fd);
    all = NULL;
    busy = false;
}

int imported_hold(int fd) {
    int saved = errno;
    if (fcntl(fd, F_GETFD) < 0) {
        errno = saved;
        return IMPORTED_NOTHING;
    }
    struct held *held = calloc(1, sizeof *held);
    fork_forgets(forget_in_child);
    int copy = held ? fcntl(fd, F_DUPFD_CLOEXEC, LOWEST_DESCRIPTOR) : -1;
    if (copy < 0 && held) /* the process may not have so many: then any number */
        copy = fcntl(fd, F_DUPFD_CLOEXEC, LOWEST_OF_ALL);
    if (copy < 0)
        free(held);
    if (copy >= 0) {
        held->fd = copy;
        spin_lock(&busy);
        held->next = all;
        all = held;
        spin_unlock(&busy);
    }
    errno = saved;
    return copy < 0 ? IMPORTED_REFUSED : copy;
}

void imported_unhold(int fd) {
    int saved = errno;
    struct held *found = NULL;
    spin_lock(&busy);
    for (struct held **at = &all; *at; at = &(*at)->next)
        if ((*at)->fd == fd) {
            found = *at;
            *at = found->next;
            break;
        }
    spin_unlock(&busy);
    if (found)
        close(fd);
    free(found);
    errno = saved;
}
