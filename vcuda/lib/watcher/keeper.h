/* Keeps the pages of all containers and the gates of all cards open for writing, in a process that outlives the
 * agent's: the kernel gives no lease on a file that somebody has open so. What is removed is closed within a second.
 */
#ifndef VCUDA_GATE_KEEPER_H
#define VCUDA_GATE_KEEPER_H

#include <signal.h>
#include <stdbool.h>

/* Until told to end. `path` is the directory of the control pages. */
void keep_open(const char *path, const volatile sig_atomic_t *is_ending);

#endif
