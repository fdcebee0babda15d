/*
 * One modelled card: a file that every process using the card maps, NVML's readers included.
 *
 * Memory. A card has `total` bytes in granules of 2 MiB. Each process has a slot that says what it holds; what
 * the card has left is always the sum over slots, so that a process killed in the middle of anything leaves
 * nothing to repair but its own slot.
 *
 * Time. The card runs one process at a time and knows three numbers about each: GPU time served so far, GPU time
 * asked for so far (both on the process's own axis, "p", in nanoseconds), and the stretches of wall time in which
 * it was served. While several processes have work, the card gives each in turn a quantum (2 ms unless set); a
 * process that runs dry gives up the rest of its quantum. A process may ask for longer turns of its own (`slice_us`),
 * as NVA06C_CTRL_CMD_SET_TIMESLICE lets every process do. That is how NVIDIA's driver shares a card between processes
 * without MPS, as far as is known from outside. Nobody runs this: whoever takes the lock first brings the model up to
 * the present (`card_advance`), which is exact because work can only be added under the same lock. With `turns =
 * kernel` in the configuration a turn is a kernel instead: the one that runs is not interrupted. To wait, a process
 * computes when its work will be done if nobody adds any, sleeps until then, and looks again.
 *
 * Death. A process holds a POSIX record lock on its slot's byte; the kernel drops it when the process ends, in
 * whatever way. Such locks also carry the owner's process id as the *reader's* PID namespace sees it, which is
 * how NVML's process lists get host ids on the host and nothing inside containers, as with the real driver.
 * What it holds stays on the card longer, until the last process is gone that has the driver's descriptors: a child of
 * fork that neither executes nor closes them. A second lock, on a description that such children share, is held until
 * then, and NVML goes on listing the owner's id (seen so on an H100 with driver 580).
 * The lock over the state is a robust mutex: a holder that died is noticed by the next.
 */
#ifndef STANDIN_CARD_H
#define STANDIN_CARD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "config.h"

enum { CARD_SLOTS = 256, CARD_STRETCHES = 512, CARD_BUCKETS = 64, CARD_ENDS = 2048 };

#define MIB (1024LL * 1024)
#define GRANULE (2 * MIB)
/* NVML's sampling period: a sixth of a second, the shortest that NVIDIA documents for utilisation. */
#define BUCKET_NS (1000000000LL / 6)

/* The process was served from p0 to p1 of its own axis during w0 to w1 of the monotonic clock. */
struct stretch {
    int64_t p0, p1, w0, w1;
};

/* GPU time in one sampling period; `epoch` says which, so that old content needs no clearing. */
struct bucket {
    int64_t epoch, busy_ns;
};

struct slot {
    uint32_t live;
    int32_t pid;
    uint64_t pid_namespace, started, nonce;
    int32_t outer_pid; /* as NVML's last reader of another PID namespace knew it, and which namespace that was */
    uint64_t outer_namespace;
    int64_t used_bytes, unlisted_bytes; /* by NVML's list of processes, and what the card has less beside that */
    int64_t shared_bytes; /* what NVML counts for it beside that and the card has once: imports, less its own that only
                             others hold */
    int64_t served, asked;
    int64_t quantum_ns; /* how long its turns are: its own process says so, and the card believes it */
    uint32_t stretches, shared_files;
    struct bucket bucket[CARD_BUCKETS];
    struct stretch stretch[CARD_STRETCHES];
    /* Where its kernels end, on its own axis: only with turns of kernels. */
    uint32_t first_end, last_end;
    int64_t end[CARD_ENDS];
};

struct card {
    uint64_t magic, size;
    pthread_mutex_t lock;
    int64_t total, clock, quantum_left, busy_ns;
    int64_t memory_limit; /* what nvmlDeviceSetMemoryLimits_v1 was told; 0: nothing */
    uint32_t turn, highest;
    uint32_t mig_mode, persistence;
    struct bucket bucket[CARD_BUCKETS];
    struct slot slot[CARD_SLOTS];
};

/* A process's hold on a card. `mine` is -1 until card_join. */
struct hold {
    const struct card_config *config;
    struct card *card;
    int fd, mine;
    int life; /* another description of the file, which children of fork keep */
};

int64_t now_ns(void);

/* Map the card, creating it if need be. False: the state directory cannot be written; errno says why. */
bool card_open(struct hold *hold, const struct card_config *config);

void card_lock(struct hold *hold);
void card_unlock(struct hold *hold);

/* The rest are called with the lock held. */
bool card_join(struct hold *hold);
void card_leave(struct hold *hold);
void card_reap(struct hold *hold);
int64_t card_used(const struct hold *hold);
/* Add bytes (whole granules; negative: give back) to what this process holds. False: the card has not that much. */
bool card_charge(struct hold *hold, int64_t bytes);
/* The same of what NVML lists for no process. */
bool card_charge_unlisted(struct hold *hold, int64_t bytes);
/* Is the slot's owner alive, and under which id does this process know it? 0: alive but out of sight; -1: dead. */
int card_owner(const struct hold *hold, uint32_t index);
/* Under which id does this process know whose memory it is? As above, but dead only where no child keeps the memory. */
int card_holder(const struct hold *hold, uint32_t index);

/* A kernel of this process was placed: it ends at p. */
void card_note_end(struct hold *hold, int64_t p);
void card_advance(struct hold *hold, int64_t now);
/* When this process will have been served up to p, if nobody adds work. Only after card_advance to `now`. */
int64_t card_due(const struct hold *hold, int64_t p, int64_t now);
/* When this process was served up to p, at or before which it must have been. */
int64_t card_wall(const struct hold *hold, int64_t p);
/* Share of the last whole sampling period, 0..1000, of a bucket array. */
int card_busy_permille(const struct bucket *buckets, int64_t epoch);

#endif
