/* Keeps the pages of all containers and the gates of all cards open for writing, in a process that outlives the agent:
 * the kernel grants no lease on a file that is open for writing. Removed files are closed within a second. */
#ifndef VCUDA_GATE_KEEPER_H
#define VCUDA_GATE_KEEPER_H

#include <signal.h>
#include <stdbool.h>

/* Run until *is_ending is set. `path` is the directory of the control pages. */
void keep_open(const char *path, const volatile sig_atomic_t *is_ending);

#endif
