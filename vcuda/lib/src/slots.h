/* A process's slot in the usage page, and the distinction between dead and living processes. */
#ifndef VCUDA_SLOTS_H
#define VCUDA_SLOTS_H

#include <stdbool.h>
#include <stdint.h>

#include "descriptor.h"
#include "vcuda_page.h"

/* The slot that a process holds. The descriptor carries the lock that proves the process alive. `file` tells whether
 * the descriptor still refers to the usage file, because programs close descriptors that they do not own. */
struct slots_claim {
    unsigned index;
    int fd;
    struct descriptor_file file;
    bool took_dead; /* the slot belonged to a dead process: its memory is still in `charged` */
};

/* Claim a slot. Returns 0, or an errno (ENOSPC: all slots belong to living processes). */
int slots_claim(struct vcuda_usage *usage, const char *path, struct slots_claim *claim);

/* Reopen the descriptor and retake the lock if the program has closed the descriptor. One thread at a time. */
void slots_keep(struct slots_claim *claim, const char *path);

/* Change the usage file's times, which notifies a watcher on the host at once. */
void slots_touch(const struct slots_claim *claim);

/* Release the slot. */
void slots_release(struct vcuda_usage *usage, const struct slots_claim *claim);

/* Free the slots of dead processes, except slot `own`. Returns their number. A slot whose process is dead but whose
 * memory a child still holds stays charged, with no work in flight. */
unsigned slots_reap(struct vcuda_usage *usage, const char *path, unsigned own);

/* True if slot `index`, of which `slot` is a copy, belongs to a living process. `fd` is the usage file, open for
 * reading. */
bool slots_alive(const struct vcuda_slot *slot, int fd, unsigned index);

/* One above the highest slot that may be in use; at most the number of slots. */
unsigned slots_high(const struct vcuda_usage *usage);

/* Number of the container's processes with work on this card in flight or not settled. */
unsigned slots_busy(const struct vcuda_usage *usage, int card);

#endif
