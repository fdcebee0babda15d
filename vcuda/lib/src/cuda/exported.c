/* A block that was exported lives while any process has a handle, a mapping or a descriptor of it, and a descriptor may
 * lie in a socket where no process has it. The kernel knows the last descriptor, and tells by a lock: an
 * open-file-description lock lives as long as the open file that it was taken through, wherever its descriptors are.
 *
 *   export   take a lock on a byte of the file, its number drawn at random, through the descriptor that the driver
 * made; open the file once more, as a witness that can ask who has locks import   keep a copy of the descriptor while
 * the import is held, so that the maker's lock lives as long (imported.c) let go   the memory is free once the witness
 * finds no lock; a thread asks again while anything waits for that
 *
 * A dma-buf's file cannot be opened again. An epoll set watches it instead, which holds nothing: it lists a file for as
 * long as that is open anywhere.
 *
 * Where there is no descriptor (a fabric handle), or none that can be locked or opened again, nothing here tells: the
 * memory stays charged until the host has seen that the card has it no more. docs/adr/0006-exported-memory.md.
 */
#define _GNU_SOURCE
#include "cuda/exported.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "cuda/account.h"
#include "cuda/allocation_table.h"
#include "cuda/imported.h"
#include "cuda/thread.h"
#include "fork.h"
#include "accounts.h"
#include "lock.h"
#include "page.h"

/* Out of the way of programs that count on low numbers. */
#define LOWEST_DESCRIPTOR 500
#define ASK_AGAIN_NS 100000000
#define CLEAN_UP_AFTER 256

/* One export. */
struct mark {
    struct mark *next;
    uint64_t name;
    int64_t byte;
    int witness; /* -1: nothing tells, unless it is watched */
    uint64_t device, inode;
    uint64_t watched; /* a dma-buf: its number in the set of those that are watched */
    bool is_listed;
};

/* Let go of here at this time, and not known to be free. */
struct waiting {
    struct waiting *next;
    uint64_t name, bytes, since_ns;
    uint64_t at;   /* linear memory that is not known to be let go of; 0 once it is */
    unsigned pins; /* of those who are about to change that */
    int card;
    int held; /* what else ends with it: an import's descriptor, or IMPORTED_NOTHING */
};

/* Does anything hold it? */
enum answer { NOTHING, SOMETHING, NOT_TOLD };

static bool busy; /* lock of both lists */
static struct mark *marks;
static struct waiting *waiting;
static bool is_asking; /* the thread runs */
static bool settling;  /* one at a time asks who holds what */

/* An epoll set, its list in /proc, and a file of our own in it: what does not list that is not this set. */
static struct {
    int set, list, own;
    uint64_t first;
} watch = {-1, -1, -1, 0};

static void drop(int *fd) {
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void close_watch(void) {
    drop(&watch.list);
    drop(&watch.own);
    drop(&watch.set);
}

static void forget_in_child(void) {
    close_watch();
    for (struct mark *mark = marks; mark; mark = mark->next)
        if (mark->witness >= 0)
            close(mark->witness);
    marks = NULL;
    waiting = NULL;
    busy = is_asking = settling = false;
}

uint64_t exported_name(void) {
    static uint64_t last;
    return __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
}

static bool identity(int fd, uint64_t *device, uint64_t *inode) {
    struct stat found;
    if (syscall(SYS_newfstatat, fd, "", &found, AT_EMPTY_PATH) != 0)
        return false;
    *device = found.st_dev;
    *inode = found.st_ino;
    return true;
}

/* A descriptor out of the way in place of this one. */
static int move_up(int fd) {
    int moved = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, LOWEST_DESCRIPTOR) : -1;
    if (moved < 0)
        return fd;
    close(fd);
    return moved;
}

static int64_t random_byte(void) {
    uint64_t drawn = vcuda_now_ns() ^ (uint64_t)getpid() << 32;
    if (syscall(SYS_getrandom, &drawn, sizeof drawn, 1 /* never wait */) != sizeof drawn)
        drawn = (drawn ^ exported_name() << 48) * UINT64_C(0x9e3779b97f4a7c15);
    return (int64_t)(drawn >> 2); /* the last byte that a lock may name is 2^63 - 1 */
}

static bool lock(int fd, int command, struct flock *range, short type, int64_t byte) {
    *range = (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(fd, command, range) == 0;
}

/* Lock a byte of the export, and open a witness; what cannot be done leaves the mark without one. */
static void set_witness(struct mark *mark, int fd) {
    char path[32];
    struct flock range;
    mark->byte = random_byte();
    if (fd < 0 ||
        (!lock(fd, F_OFD_SETLK, &range, F_WRLCK, mark->byte) && !lock(fd, F_OFD_SETLK, &range, F_RDLCK, mark->byte)))
        return;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int witness = move_up(open(path, O_RDONLY | O_CLOEXEC));
    uint64_t device, inode;
    bool sees = witness >= 0 && identity(witness, &mark->device, &mark->inode) && identity(fd, &device, &inode) &&
                mark->device == device && mark->inode == inode &&
                lock(witness, F_OFD_GETLK, &range, F_WRLCK, mark->byte) && range.l_type != F_UNLCK;
    if (sees)
        mark->witness = witness;
    else if (witness >= 0)
        close(witness);
}

void exported_as(uint64_t name, int fd) {
    int saved = errno;
    struct mark *mark = calloc(1, sizeof *mark);
    fork_forgets(forget_in_child);
    if (mark) {
        *mark = (struct mark){.name = name, .witness = -1};
        set_witness(mark, fd);
        spin_lock(&busy);
        mark->next = marks;
        marks = mark;
        spin_unlock(&busy);
    }
    errno = saved;
}

/* ---- dma-bufs ---------------------------------------------------------------------------------------------------- */

/* With the lock of who asks. */
static bool open_watch(void) {
    char path[40];
    if (watch.set >= 0)
        return true;
    watch.first = (uint64_t)random_byte();
    watch.set = move_up(epoll_create1(EPOLL_CLOEXEC));
    watch.own = move_up(eventfd(0, EFD_CLOEXEC));
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", watch.set);
    watch.list = move_up(open(path, O_RDONLY | O_CLOEXEC));
    struct epoll_event own = {.data.u64 = watch.first};
    if (watch.list >= 0 && epoll_ctl(watch.set, EPOLL_CTL_ADD, watch.own, &own) == 0)
        return true;
    close_watch();
    return false;
}

uint64_t exported_watch(int fd) {
    static uint64_t last;
    int saved = errno;
    fork_forgets(forget_in_child);
    spin_lock(&settling);
    uint64_t number = open_watch() ? watch.first + ++last : 0;
    struct epoll_event event = {.data.u64 = number};
    if (number && epoll_ctl(watch.set, EPOLL_CTL_ADD, fd, &event) != 0)
        number = 0;
    spin_unlock(&settling);
    errno = saved;
    return number;
}

/* One line of the list; true if it is of our own file. */
static bool listed(const char *line, struct mark *marks_of_one) {
    const char *at = strstr(line, "data:");
    uint64_t number = at ? strtoull(at + strlen("data:"), NULL, 16) : 0;
    for (struct mark *mark = marks_of_one; mark && number; mark = mark->next)
        mark->is_listed |= mark->watched == number;
    return number && number == watch.first;
}

/* Which of these marks are in the list? False if it is not ours any more. The program may have closed what it is read
 * through. */
static bool look_up(struct mark *its) {
    char text[4096];
    size_t kept = 0;
    off_t offset = 0;
    bool is_ours = false;
    for (struct mark *mark = its; mark; mark = mark->next)
        mark->is_listed = false;
    for (ssize_t more; (more = pread(watch.list, text + kept, sizeof text - 1 - kept, offset)) > 0;) {
        offset += more;
        kept += (size_t)more;
        text[kept] = 0;
        char *line = text;
        for (char *end; (end = strchr(line, '\n')); line = end + 1) {
            *end = 0;
            is_ours |= listed(line, its);
        }
        kept = strlen(line);
        memmove(text, line, kept);
    }
    return is_ours;
}

/* Is anything open that it was exported as? The program may have closed the witness, whose number is another file's
 * then. */
static enum answer is_open(const struct mark *mark) {
    struct flock range;
    uint64_t device, inode;
    if (mark->watched)
        return mark->is_listed ? SOMETHING : NOTHING;
    if (mark->witness < 0 || !identity(mark->witness, &device, &inode) || device != mark->device ||
        inode != mark->inode || !lock(mark->witness, F_OFD_GETLK, &range, F_WRLCK, mark->byte))
        return NOT_TOLD;
    return range.l_type != F_UNLCK ? SOMETHING : NOTHING;
}

/* Move the marks of a name from one list to another. */
static void move_marks(struct mark **from, struct mark **to, uint64_t name) {
    spin_lock(&busy);
    for (struct mark **at = from; *at;) {
        struct mark *mark = *at;
        if (mark->name != name) {
            at = &mark->next;
            continue;
        }
        *at = mark->next;
        mark->next = *to;
        *to = mark;
    }
    spin_unlock(&busy);
}

static void forget(struct mark *list) {
    while (list) {
        struct mark *mark = list;
        list = mark->next;
        if (mark->witness >= 0 && is_open(mark) != NOT_TOLD) /* else its number may be another file's */
            close(mark->witness);
        free(mark);
    }
}

/* Who holds what was exported by this name? Once nothing does, its marks are gone. With the lock of who asks. */
static enum answer holds(uint64_t name) {
    struct mark *its = NULL;
    bool open = false, unknown = false, is_watched = false;
    move_marks(&marks, &its, name);
    for (struct mark *mark = its; mark; mark = mark->next)
        is_watched |= mark->watched != 0;
    bool is_told = is_watched && look_up(its);
    for (struct mark *mark = its; mark; mark = mark->next) {
        enum answer one = mark->watched && !is_told ? NOT_TOLD : is_open(mark);
        open |= one == SOMETHING;
        unknown |= one == NOT_TOLD;
    }
    if (open || unknown)
        move_marks(&its, &marks, name);
    else
        forget(its);
    return open ? SOMETHING : unknown ? NOT_TOLD : NOTHING;
}

/* Linear memory as it was when it was exported: its number is in the table while it is. */
static bool is_here(const struct waiting *item) {
    struct allocation found;
    return item->at && (item->pins || (allocation_get(ALLOCATION_LINEAR, item->at, &found) &&
                                       found.kind == ALLOCATION_LINEAR && found.count == (uint32_t)item->name));
}

/* Give back what is known to be free of it; true if that is all. Adds to *untold what nothing tells of. */
static bool is_returned(struct waiting *item, uint64_t *untold) {
    if (is_here(item)) {
        item->since_ns = vcuda_now_ns();
        return false;
    }
    item->at = 0;
    enum answer answer = holds(item->name);
    if (answer == SOMETHING || (answer == NOT_TOLD && item->held >= 0))
        return false;
    imported_unhold(item->held);
    uint64_t gone = answer == NOTHING ? item->bytes : account_seen_gone(item->card, item->bytes, item->since_ns);
    account_return(item->card, gone);
    item->bytes -= gone;
    *untold += item->bytes;
    if (item->bytes)
        return false;
    struct mark *its = NULL;
    move_marks(&marks, &its, item->name);
    forget(its);
    return true;
}

static void push(struct waiting *item) {
    spin_lock(&busy);
    item->next = waiting;
    waiting = item;
    spin_unlock(&busy);
}

void exported_settle(void) {
    if (!__atomic_load_n(&waiting, __ATOMIC_ACQUIRE))
        return;
    int saved = errno;
    spin_lock(&settling);
    spin_lock(&busy);
    struct waiting *all = waiting;
    __atomic_store_n(&waiting, NULL, __ATOMIC_RELEASE);
    spin_unlock(&busy);
    uint64_t untold = 0;
    while (all) {
        struct waiting *item = all;
        all = item->next;
        if (is_returned(item, &untold))
            free(item);
        else
            push(item);
    }
    accounts_set_untold(untold);
    spin_unlock(&settling);
    errno = saved;
}

static void *ask(void *unused) {
    (void)unused;
    prctl(PR_SET_NAME, "vcuda-exported", 0, 0, 0);
    struct timespec nap = {.tv_nsec = ASK_AGAIN_NS};
    for (bool more = true; more;) {
        nanosleep(&nap, NULL);
        exported_settle();
        spin_lock(&settling); /* or the list may be with another thread */
        spin_lock(&busy);
        more = is_asking = waiting != NULL;
        spin_unlock(&busy);
        spin_unlock(&settling);
    }
    return NULL;
}

/* Without a thread, whoever next needs the memory asks. */
static void start_asking(void) {
    spin_lock(&settling);
    spin_lock(&busy);
    bool start = waiting && !is_asking;
    is_asking |= start;
    spin_unlock(&busy);
    spin_unlock(&settling);
    if (start && !thread_start(ask))
        __atomic_store_n(&is_asking, false, __ATOMIC_RELEASE);
}

/* One more that waits; false without memory for it. */
static bool wait_for(struct waiting item) {
    struct waiting *made = calloc(1, sizeof *made);
    if (!made)
        return false;
    *made = item;
    push(made);
    return true;
}

void exported_let_go(uint64_t name, int card, uint64_t bytes) {
    int saved = errno;
    bool is_known = false;
    spin_lock(&settling);
    spin_lock(&busy);
    for (struct mark *mark = marks; mark; mark = mark->next)
        is_known |= mark->name == name;
    spin_unlock(&busy);
    bool waits = is_known && holds(name) != NOTHING;
    spin_unlock(&settling);
    struct waiting item = {
        .name = name, .bytes = bytes, .since_ns = vcuda_now_ns(), .card = card, .held = IMPORTED_NOTHING};
    if (waits && wait_for(item)) { /* without memory for it, charged for good */
        exported_settle();
        start_asking();
    } else if (!waits) {
        account_return(card, bytes);
    }
    errno = saved;
}

/* ---- what dma-bufs are made of ----------------------------------------------------------------------------------- */

bool exported_range(uint64_t name, int card, uint64_t bytes, uint64_t at, int held) {
    int saved = errno;
    bool waits = wait_for((struct waiting){.name = name,
                                           .bytes = bytes,
                                           .since_ns = vcuda_now_ns(),
                                           .at = at,
                                           .pins = at != 0,
                                           .card = card,
                                           .held = held});
    start_asking();
    errno = saved;
    return waits;
}

void exported_pin(uint32_t name, int by) {
    spin_lock(&settling);
    spin_lock(&busy);
    for (struct waiting *item = waiting; item; item = item->next)
        if (item->at && (uint32_t)item->name == name)
            item->pins += (unsigned)by;
    spin_unlock(&busy);
    spin_unlock(&settling);
}

/* Marks whose descriptors are all closed: a program may export the same memory again and again. */
static void forget_closed(void) {
    struct mark *open = NULL, *closed = NULL;
    spin_lock(&settling);
    spin_lock(&busy);
    struct mark *all = marks;
    marks = NULL;
    spin_unlock(&busy);
    bool is_told = look_up(all);
    while (all) {
        struct mark *mark = all, **list = is_told && mark->watched && !mark->is_listed ? &closed : &open;
        all = mark->next;
        mark->next = *list;
        *list = mark;
    }
    spin_lock(&busy);
    struct mark **end = &marks;
    while (*end)
        end = &(*end)->next;
    *end = open;
    spin_unlock(&busy);
    spin_unlock(&settling);
    forget(closed);
}

bool exported_as_watched(uint64_t name, uint64_t number) {
    static uint64_t made; /* marks, ever */
    int saved = errno;
    struct mark *mark = calloc(1, sizeof *mark);
    if (mark) {
        *mark = (struct mark){.name = name, .witness = -1, .watched = number};
        spin_lock(&busy);
        mark->next = marks;
        marks = mark;
        spin_unlock(&busy);
    }
    if (__atomic_add_fetch(&made, 1, __ATOMIC_RELAXED) % CLEAN_UP_AFTER == 0)
        forget_closed();
    errno = saved;
    return mark != NULL;
}
