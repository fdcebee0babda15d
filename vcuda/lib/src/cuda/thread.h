/* Threads that belong to the library. */
#ifndef VCUDA_THREAD_H
#define VCUDA_THREAD_H

#include <stdbool.h>

/* Start a detached thread with all signals blocked; false if it cannot be created. */
bool thread_start(void *(*run)(void *));

#endif
