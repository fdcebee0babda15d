/* Sleeps inside a call of the program. */
#ifndef VCUDA_NAP_H
#define VCUDA_NAP_H

#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Sleep for about `ns`, less if a signal arrives. Not nanosleep(): that is a cancellation point, which driver calls are
 * not, and a thread cancelled here would leave its counts behind. */
static inline void nap(uint64_t ns) {
    struct timespec time = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    syscall(SYS_nanosleep, &time, NULL);
}

#endif
