/* The shared state of one card: its file, its lock, its slots and its memory. See card.h for the model. */
#define _GNU_SOURCE
#include "card.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAGIC 0x31304452414356ULL
/* Record locks on a slot's byte lie far behind the content. */
#define LOCK_BASE (1LL << 40)
#define LIFE_BASE (1LL << 41)

int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void create(struct card *card, const struct card_config *config) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&card->lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
    card->size = sizeof *card;
    card->total = config->memory_bytes;
    card->clock = now_ns();
    card->mig_mode = config->mig;
    __atomic_store_n(&card->magic, MAGIC, __ATOMIC_RELEASE);
}

/* The configuration may have changed since the card was last used: it holds once nobody is using the card. */
static void refresh(struct hold *hold) {
    card_lock(hold);
    card_reap(hold);
    if (hold->card->highest == 0) {
        hold->card->total = hold->config->memory_bytes;
        hold->card->mig_mode = hold->config->mig;
    }
    card_unlock(hold);
}

/* A file of another size or layout belongs to an older build of the stand-in: it is begun anew under a new name. */
static bool map_file(struct hold *hold, const char *path) {
    struct stat status;
    hold->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    hold->life = hold->fd < 0 ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (hold->fd < 0)
        return false;
    bool mapped = false;
    if (hold->life >= 0 && flock(hold->fd, LOCK_EX) == 0 && fstat(hold->fd, &status) == 0) {
        bool fresh = status.st_size == 0;
        if (fresh) {
            fchmod(hold->fd, 0666); /* containers' users differ */
            if (ftruncate(hold->fd, sizeof *hold->card) != 0)
                goto out;
        }
        void *at = mmap(NULL, sizeof *hold->card, PROT_READ | PROT_WRITE, MAP_SHARED, hold->fd, 0);
        if (at != MAP_FAILED) {
            hold->card = at;
            if (fresh || hold->card->magic != MAGIC)
                create(hold->card, hold->config);
            refresh(hold);
            mapped = true;
        }
    }
out:
    flock(hold->fd, LOCK_UN);
    /* The descriptors are never closed once mapped: that would drop the process's record locks. */
    if (!mapped) {
        close(hold->fd);
        close(hold->life);
    }
    return mapped;
}

bool card_open(struct hold *hold, const struct card_config *config) {
    const struct config *all = config_read();
    char path[384];
    hold->config = config;
    hold->mine = -1;
    if (mkdir(all->state, 0777) == 0)
        chmod(all->state, 01777); /* as /tmp: containers' users differ */
    int length = (int)strcspn(config->uuid_text, "/");
    snprintf(path, sizeof path, "%s/%.*s-%zx", all->state, length, config->uuid_text, sizeof(struct card));
    return map_file(hold, path);
}

/* The last holder died inside: nothing but its own slot can be half written, and that one is reaped. */
void card_lock(struct hold *hold) {
    if (pthread_mutex_lock(&hold->card->lock) == EOWNERDEAD) {
        pthread_mutex_consistent(&hold->card->lock);
        struct card *card = hold->card;
        if (card->highest > CARD_SLOTS)
            card->highest = CARD_SLOTS;
        if (card->turn >= CARD_SLOTS)
            card->turn = 0;
        for (uint32_t index = 0; index < card->highest; index++)
            if (card->slot[index].stretches > CARD_STRETCHES)
                card->slot[index].stretches = 0;
        card_reap(hold);
    }
}

void card_unlock(struct hold *hold) {
    pthread_mutex_unlock(&hold->card->lock);
}

static bool slot_lock(const struct hold *hold, uint32_t index, short kind) {
    struct flock lock = {.l_type = kind, .l_whence = SEEK_SET, .l_start = LOCK_BASE + index, .l_len = 1};
    return fcntl(hold->fd, F_SETLK, &lock) == 0;
}

/* The lock of a description: children of fork have it too. */
static void life_lock(const struct hold *hold, uint32_t index, short kind) {
    struct flock lock = {.l_type = kind, .l_whence = SEEK_SET, .l_start = LIFE_BASE + index, .l_len = 1};
    fcntl(hold->life, F_OFD_SETLK, &lock);
}

static bool life_held(const struct hold *hold, uint32_t index) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LIFE_BASE + index, .l_len = 1};
    return fcntl(hold->life, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

static uint64_t pid_namespace(void) {
    struct stat status;
    return stat("/proc/self/ns/pid", &status) == 0 ? (uint64_t)status.st_ino : 0;
}

/* Start time of this process, field 22 of /proc/self/stat: tells two owners of one process id apart. */
static uint64_t process_start(void) {
    char text[1024];
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    if (got <= 0)
        return 0;
    text[got] = '\0';
    char *at = strrchr(text, ')');
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at, NULL, 10) : 0;
}

int card_owner(const struct hold *hold, uint32_t index) {
    if ((int)index == hold->mine)
        return (int)getpid();
    struct slot *slot = &hold->card->slot[index];
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LOCK_BASE + index, .l_len = 1};
    if (fcntl(hold->fd, F_GETLK, &lock) != 0)
        return 0;
    if (lock.l_type != F_UNLCK) {
        if (lock.l_pid > 0 && lock.l_pid != slot->pid) {
            slot->outer_pid = lock.l_pid;
            slot->outer_namespace = pid_namespace();
        }
        return lock.l_pid > 0 ? lock.l_pid : 0;
    }
    /* A process is not shown its own locks, nor those of another copy of this library in it. */
    bool own = slot->pid == getpid() && slot->pid_namespace == pid_namespace() && slot->started == process_start();
    return own ? slot->pid : -1;
}

int card_holder(const struct hold *hold, uint32_t index) {
    int owner = card_owner(hold, index);
    if (owner >= 0 || !life_held(hold, index))
        return owner;
    const struct slot *slot = &hold->card->slot[index];
    uint64_t here = pid_namespace();
    return slot->pid_namespace == here ? slot->pid : slot->outer_namespace == here ? slot->outer_pid : 0;
}

/* The dead owner's shared files go with it. */
static void clear(struct hold *hold, struct slot *slot) {
    for (uint32_t file = 0; file < slot->shared_files && file < 65536; file++) {
        char path[384];
        snprintf(path, sizeof path, "%s/ipc-%016llx-%u", config_read()->state, (unsigned long long)slot->nonce, file);
        unlink(path);
    }
    slot->live = 0;
    slot->used_bytes = slot->unlisted_bytes = slot->shared_bytes = 0;
    slot->asked = slot->served;
    slot->shared_files = 0;
    while (hold->card->highest && !hold->card->slot[hold->card->highest - 1].live)
        hold->card->highest--;
}

void card_reap(struct hold *hold) {
    for (uint32_t index = hold->card->highest; index-- > 0;)
        if (hold->card->slot[index].live && card_holder(hold, index) < 0)
            clear(hold, &hold->card->slot[index]);
}

bool card_join(struct hold *hold) {
    if (hold->mine >= 0)
        return true;
    card_reap(hold);
    for (uint32_t index = 0; index < CARD_SLOTS; index++) {
        struct slot *slot = &hold->card->slot[index];
        if (slot->live || !slot_lock(hold, index, F_WRLCK))
            continue;
        life_lock(hold, index, F_WRLCK);
        memset(slot, 0, sizeof *slot);
        slot->quantum_ns = config_read()->slice_ns;
        slot->pid = getpid();
        slot->pid_namespace = pid_namespace();
        slot->started = process_start();
        slot->nonce = (uint64_t)now_ns() ^ ((uint64_t)slot->pid << 40) ^ index;
        if (hold->card->highest <= index)
            hold->card->highest = index + 1;
        __atomic_store_n(&slot->live, 1, __ATOMIC_RELEASE);
        hold->mine = (int)index;
        return true;
    }
    return false;
}

void card_leave(struct hold *hold) {
    if (hold->mine < 0)
        return;
    clear(hold, &hold->card->slot[hold->mine]);
    slot_lock(hold, (uint32_t)hold->mine, F_UNLCK);
    life_lock(hold, (uint32_t)hold->mine, F_UNLCK);
    hold->mine = -1;
}

int64_t card_used(const struct hold *hold) {
    int64_t used = 0;
    for (uint32_t index = 0; index < hold->card->highest; index++)
        if (hold->card->slot[index].live)
            used += hold->card->slot[index].used_bytes + hold->card->slot[index].unlisted_bytes;
    return used;
}

static bool has_room(struct hold *hold, int64_t bytes) {
    if (bytes <= 0)
        return true;
    if (bytes > hold->card->total)
        return false;
    if (card_used(hold) + bytes > hold->card->total)
        card_reap(hold);
    return card_used(hold) + bytes <= hold->card->total;
}

bool card_charge(struct hold *hold, int64_t bytes) {
    bool fits = has_room(hold, bytes);
    if (fits)
        hold->card->slot[hold->mine].used_bytes += bytes;
    return fits;
}

bool card_charge_unlisted(struct hold *hold, int64_t bytes) {
    bool fits = has_room(hold, bytes);
    if (fits)
        hold->card->slot[hold->mine].unlisted_bytes += bytes;
    return fits;
}
