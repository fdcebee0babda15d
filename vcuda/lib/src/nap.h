/* Sleeping in a call of the program's. */
#ifndef VCUDA_NAP_H
#define VCUDA_NAP_H

#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* For about so long, less if a signal comes. Not by nanosleep(), at which a thread may be cancelled: the driver's calls
 * are no such points, and what a thread that ends here has counted would stay. */
static inline void nap(uint64_t ns) {
    struct timespec time = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    syscall(SYS_nanosleep, &time, NULL);
}

#endif
