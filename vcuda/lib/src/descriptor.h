/* The library's own descriptors, in a program that is not aware of them: it may close one and open its own file under
 * the same number. */
#ifndef VCUDA_DESCRIPTOR_H
#define VCUDA_DESCRIPTOR_H

#include <stdbool.h>
#include <stdint.h>

/* Identifies the file that a descriptor refers to. */
struct descriptor_file {
    uint64_t device, inode;
};

/* Open `path` at a number above those that programs hard-code or close in bulk; closed on exec. Returns -1 and sets
 * errno if it cannot be opened. */
int descriptor_open(const char *path, int flags);

/* Identify the file at `path`, or the one behind the descriptor `fd` if `path` is "". */
bool descriptor_file(int fd, const char *path, struct descriptor_file *file);

/* True if this descriptor (still) refers to that file. */
bool descriptor_is(int fd, const struct descriptor_file *file);

/* Close the descriptor if it refers to that file. */
void descriptor_close(int fd, const struct descriptor_file *file);

#endif
