/* A process's place in the usage page, and telling dead processes from living ones. */
#ifndef VCUDA_SLOTS_H
#define VCUDA_SLOTS_H

#include <stdbool.h>
#include <stdint.h>

#include "descriptor.h"
#include "vcuda_page.h"

/* The slot a process holds. The descriptor carries the lock that proves it alive; the rest tells whether the number
 * still means that file, because programs close descriptors they do not know. */
struct slots_claim {
    unsigned index;
    int fd;
    struct descriptor_file file;
    bool took_dead; /* the slot was a dead process's: what it held is still in `charged` */
};

/* Take a slot: 0, or an errno (ENOSPC: all belong to living processes). */
int slots_claim(struct vcuda_usage *usage, const char *path, struct slots_claim *claim);

/* If the program has closed our descriptor, and the lock went with it: take both again. By one thread at a time. */
void slots_keep(struct slots_claim *claim, const char *path);

/* Change the usage file's times, which whoever watches it on the host is told of at once. */
void slots_touch(const struct slots_claim *claim);

/* Give it back. */
void slots_release(struct vcuda_usage *usage, const struct slots_claim *claim);

/* Free the slots of dead processes, but for slot `own`. Returns how many there were. One that is dead and whose memory
 * a child keeps stays charged, with no work in flight. */
unsigned slots_reap(struct vcuda_usage *usage, const char *path, unsigned own);

/* Does slot `index`, of which `slot` is a copy, belong to a living process? `fd` is the usage file, open for reading.
 */
bool slots_alive(const struct vcuda_slot *slot, int fd, unsigned index);

/* How many slots may hold anything; never more than there are. */
unsigned slots_high(const struct vcuda_usage *usage);

/* How many of the container's processes have work in flight on this card, or work that is not settled yet. */
unsigned slots_busy(const struct vcuda_usage *usage, int card);

#endif
