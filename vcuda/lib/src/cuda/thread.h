/* Threads of the library's own. */
#ifndef VCUDA_THREAD_H
#define VCUDA_THREAD_H

#include <stdbool.h>

/* Start a thread that gets none of the program's signals and that nobody joins; false if it cannot be had. */
bool thread_start(void *(*run)(void *));

#endif
