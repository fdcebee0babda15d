/* Slots: one a process, in force while its open-file-description lock on byte [index] of the usage file is held.
 *
 * The kernel drops that lock at death, kill -9 included, and it works across PID namespaces and PID reuse. Whoever
 * changes a slot's owner holds the byte's lock while doing so, through a descriptor of its own, so two never do; one
 * that is killed in the middle leaves a slot that the next treats the same way.
 * A child of fork inherits the descriptor and with it the lock, as it inherits the driver's descriptors: a driver keeps
 * what a killed process had on the card until the last process with a copy of them is gone, and so long it stays
 * charged. All are closed on exec, and by a child that closes what it does not know.
 * A free lock alone does not condemn: a program may have closed our descriptor. In the same PID namespace the slot's
 * process must be gone as well.
 */
#define _GNU_SOURCE
#include "slots.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "page.h"
#include "timeline.h"
#include "token_bucket.h"

struct identity {
    uint32_t pid;
    uint64_t pid_namespace;
    uint64_t start_time;
};

/* Into /proc/<pid>/stat. By hand: the first snprintf of a process costs it ten page faults. */
static const char *stat_path(char path[32], uint32_t pid) {
    char digits[10];
    size_t count = 0, used = 6;
    memcpy(path, "/proc/", used);
    do
        digits[count++] = (char)('0' + pid % 10);
    while (pid /= 10);
    while (count)
        path[used++] = digits[--count];
    memcpy(path + used, "/stat", sizeof "/stat");
    return path;
}

static uint64_t number_at(const char *at) {
    uint64_t value = 0;
    for (; *at >= '0' && *at <= '9'; at++)
        value = value * 10 + (uint64_t)(*at - '0');
    return value;
}

/* Field 22 of /proc/<pid>/stat, or 0 if there is no such process any more. One whose first thread is a zombie is there
 * until its last thread has ended: until then it has its descriptors, and what they hold. A kernel frees a process's
 * descriptors from the highest on, so that this lock is free before the driver gives the memory back. */
static uint64_t start_time_of(uint32_t pid) {
    char path[32], text[512];
    int fd = open(stat_path(path, pid), O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0)
        return 0;
    text[length] = '\0';
    const char *at = strrchr(text, ')'); /* the name before it may hold anything */
    if (!at || at[1] != ' ')
        return 0;
    bool ended = at[2] == 'Z' || at[2] == 'X';
    for (int field = 2; field < 22; field++)
        if (!(at = strchr(at + 1, ' ')) || (field == 19 && ended && number_at(at + 1) <= 1))
            return 0;
    return number_at(at + 1);
}

static uint64_t own_namespace(void) {
    struct descriptor_file space;
    return descriptor_file(AT_FDCWD, "/proc/self/ns/pid", &space) ? space.inode : 0;
}

/* Without the lock: is the slot's process there all the same? Only where its PID means anything to us. */
static bool is_running(const struct vcuda_slot *slot, uint64_t pid_namespace) {
    uint64_t start = __atomic_load_n(&slot->start_time, __ATOMIC_RELAXED);
    uint32_t pid = __atomic_load_n(&slot->pid, __ATOMIC_RELAXED);
    return pid_namespace && start && __atomic_load_n(&slot->pid_namespace, __ATOMIC_RELAXED) == pid_namespace &&
           start_time_of(pid) == start;
}

/* Of an unlocked slot that is not this attachment's: is its process gone, or this very one before it called exec? */
static bool is_over(const struct vcuda_slot *slot, uint64_t pid_namespace) {
    return __atomic_load_n(&slot->pid, __ATOMIC_RELAXED) == (uint32_t)getpid() || !is_running(slot, pid_namespace);
}

static bool lock(int fd, unsigned index, short type) {
    struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = index, .l_len = 1};
    return fcntl(fd, F_OFD_SETLK, &range) == 0;
}

static bool is_live(const struct vcuda_slot *slot) {
    return __atomic_load_n(&slot->state, __ATOMIC_ACQUIRE) == VCUDA_SLOT_LIVE;
}

/* Under the byte's lock: the amounts go first, so that a kill in between leaves a slot to be cleared again. */
static void clear(struct vcuda_slot *slot) {
    __atomic_store_n(&slot->movable, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&slot->untold, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&slot->unsettled_since_ns, 0, __ATOMIC_RELAXED);
    for (int i = 0; i < VCUDA_MAX_CARDS; i++) {
        __atomic_store_n(&slot->charged[i], 0, __ATOMIC_SEQ_CST);
        __atomic_store_n(&slot->inflight[i], 0, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&slot->state, VCUDA_SLOT_FREE, __ATOMIC_RELEASE);
}

/* A living process with work in flight updates its slot each millisecond; on a machine that is busy it may be late. One
 * that ended well a moment before its last work was settled is charged no more than this too much. */
#define UPDATED_WITHIN_NS 20000000u

/* A process that is gone had work in flight on the card that nobody measured: charge the time from its launch until the
 * process was seen last, as far as the container's timeline has room for it. */
static void charge_unsettled(struct vcuda_usage *usage, struct vcuda_slot *slot) {
    uint64_t since = __atomic_load_n(&slot->unsettled_since_ns, __ATOMIC_RELAXED), now = vcuda_now_ns();
    uint64_t seen = __atomic_load_n(&slot->heartbeat_ns, __ATOMIC_RELAXED) + UPDATED_WITHIN_NS;
    uint64_t until = seen < now ? seen : now;
    if (!since || since >= until)
        return;
    struct timeline_work work = {(int64_t)since, (int64_t)since, (int64_t)until, (int64_t)until};
    for (int i = 0; i < VCUDA_MAX_CARDS; i++)
        if (__atomic_load_n(&slot->inflight[i], __ATOMIC_RELAXED)) {
            uint64_t ns = (uint64_t)timeline_add(&usage->timeline[i], &work, 256);
            __atomic_fetch_add(&usage->card[i].busy_ns, ns, __ATOMIC_RELAXED);
            bucket_force(&usage->card[i], ns);
        }
}

unsigned slots_high(const struct vcuda_usage *usage) {
    uint32_t high = __atomic_load_n(&usage->slot_high, __ATOMIC_ACQUIRE);
    return high < VCUDA_MAX_SLOTS ? high : VCUDA_MAX_SLOTS;
}

/* Lock the first slot that nobody living holds: a free one, or if there is none a dead process's. Trying a lock asks
 * the kernel to walk all that are held, so a slot that says LIVE is passed over without one as long as others don't. */
static int find(struct vcuda_usage *usage, int fd, uint64_t pid_namespace, bool *dead) {
    for (int pass = 0; pass < 2; pass++)
        for (unsigned i = 0; i < VCUDA_MAX_SLOTS; i++) {
            struct vcuda_slot *slot = &usage->slot[i];
            if ((pass == 0 && is_live(slot)) || !lock(fd, i, F_WRLCK))
                continue;
            *dead = is_live(slot); /* asked under the lock: nobody else changes it now */
            if (!*dead || is_over(slot, pid_namespace))
                return (int)i;
            lock(fd, i, F_UNLCK);
        }
    return -1;
}

static void enter(struct vcuda_usage *usage, unsigned index, uint64_t pid_namespace) {
    struct vcuda_slot *slot = &usage->slot[index];
    charge_unsettled(usage, slot);
    clear(slot);
    uint64_t nonce = 0;
    if (syscall(SYS_getrandom, &nonce, sizeof nonce, 1 /* GRND_NONBLOCK */) != sizeof nonce)
        nonce = vcuda_now_ns();
    uint32_t pid = (uint32_t)getpid();
    __atomic_store_n(&slot->pid, pid, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->pid_namespace, pid_namespace, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->start_time, start_time_of(pid), __ATOMIC_RELAXED);
    __atomic_store_n(&slot->nonce, nonce, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->heartbeat_ns, vcuda_now_ns(), __ATOMIC_RELAXED);
    uint32_t high = __atomic_load_n(&usage->slot_high, __ATOMIC_RELAXED);
    while (high <= index &&
           !__atomic_compare_exchange_n(&usage->slot_high, &high, index + 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        ;
    __atomic_store_n(&slot->state, VCUDA_SLOT_LIVE, __ATOMIC_RELEASE);
}

int slots_claim(struct vcuda_usage *usage, const char *path, struct slots_claim *claim) {
    int fd = descriptor_open(path, O_RDWR);
    if (fd < 0)
        return errno;
    uint64_t pid_namespace = own_namespace();
    int index = find(usage, fd, pid_namespace, &claim->took_dead);
    if (index < 0 || !descriptor_file(fd, "", &claim->file)) {
        int error = index < 0 ? ENOSPC : errno;
        if (index < 0)
            __atomic_fetch_add(&usage->slots_exhausted, 1, __ATOMIC_RELAXED);
        close(fd);
        return error;
    }
    __atomic_fetch_add(&usage->slots_reaped, claim->took_dead, __ATOMIC_RELAXED);
    enter(usage, (unsigned)index, pid_namespace);
    claim->fd = fd;
    claim->index = (unsigned)index;
    return 0;
}

void slots_keep(struct slots_claim *claim, const char *path) {
    if (descriptor_is(claim->fd, &claim->file))
        return;
    int fd = descriptor_open(path, O_RDWR);
    if (fd >= 0 && descriptor_is(fd, &claim->file) && lock(fd, claim->index, F_WRLCK))
        claim->fd = fd;
    else if (fd >= 0)
        close(fd);
}

/* The file's times alone change: were the descriptor by now another file's, that would do it no harm. */
void slots_touch(const struct slots_claim *claim) {
    syscall(SYS_utimensat, claim->fd, NULL, NULL, 0);
}

void slots_release(struct vcuda_usage *usage, const struct slots_claim *claim) {
    charge_unsettled(usage, &usage->slot[claim->index]);
    clear(&usage->slot[claim->index]);
    descriptor_close(claim->fd, &claim->file);
}

/* Of a slot that somebody has locked: if that is a child of a process that is gone, none of its work runs any more. */
static void stop_orphan(struct vcuda_usage *usage, struct vcuda_slot *slot, uint64_t pid_namespace) {
    bool works = false;
    for (int i = 0; i < VCUDA_MAX_CARDS; i++)
        works |= __atomic_load_n(&slot->inflight[i], __ATOMIC_RELAXED) != 0;
    if (!works || __atomic_load_n(&slot->pid_namespace, __ATOMIC_RELAXED) != pid_namespace ||
        is_running(slot, pid_namespace))
        return;
    charge_unsettled(usage, slot);
    for (int i = 0; i < VCUDA_MAX_CARDS; i++)
        __atomic_store_n(&slot->inflight[i], 0, __ATOMIC_RELAXED);
}

unsigned slots_reap(struct vcuda_usage *usage, const char *path, unsigned own) {
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return 0;
    unsigned reaped = 0;
    uint64_t pid_namespace = own_namespace();
    for (unsigned i = 0; i < slots_high(usage); i++) {
        struct vcuda_slot *slot = &usage->slot[i];
        if (i == own || !is_live(slot))
            continue;
        if (!lock(fd, i, F_WRLCK)) {
            stop_orphan(usage, slot, pid_namespace);
            continue;
        }
        if (is_live(slot) && is_over(slot, pid_namespace)) {
            charge_unsettled(usage, slot);
            clear(slot);
            reaped++;
        }
        lock(fd, i, F_UNLCK);
    }
    close(fd);
    __atomic_fetch_add(&usage->slots_reaped, reaped, __ATOMIC_RELAXED);
    return reaped;
}

bool slots_alive(const struct vcuda_slot *slot, int fd, unsigned index) {
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = index, .l_len = 1};
    if (!is_live(slot))
        return false;
    bool locked = fcntl(fd, F_OFD_GETLK, &range) == 0 && range.l_type != F_UNLCK;
    return locked || is_running(slot, own_namespace());
}

unsigned slots_busy(const struct vcuda_usage *usage, int card) {
    unsigned high = slots_high(usage), count = 0;
    for (unsigned i = 0; i < high; i++)
        count += __atomic_load_n(&usage->slot[i].state, __ATOMIC_RELAXED) == VCUDA_SLOT_LIVE &&
                 __atomic_load_n(&usage->slot[i].inflight[card], __ATOMIC_RELAXED) != 0;
    return count;
}
