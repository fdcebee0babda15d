/* The library's own descriptors in a program that knows nothing of them: it may close one, and open a file of its own
 * in its place. */
#ifndef VCUDA_DESCRIPTOR_H
#define VCUDA_DESCRIPTOR_H

#include <stdbool.h>
#include <stdint.h>

/* Which file a descriptor is of. */
struct descriptor_file {
    uint64_t device, inode;
};

/* Open it out of the way of programs that count on low numbers or close the first few hundred; closed on exec. -1 and
 * errno if it cannot be opened. */
int descriptor_open(const char *path, int flags);

/* Of the file at `path`, or of the descriptor `fd` itself if `path` is "". */
bool descriptor_file(int fd, const char *path, struct descriptor_file *file);

/* Is this descriptor (still) one of that file? */
bool descriptor_is(int fd, const struct descriptor_file *file);

/* Close it if it is. */
void descriptor_close(int fd, const struct descriptor_file *file);

#endif
