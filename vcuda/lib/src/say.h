/* One line on stderr, and only when it must be or the host asked: silence is the default in a guest. */
#ifndef VCUDA_SAY_H
#define VCUDA_SAY_H

#include <stdint.h>

/* Print "vcuda: ..." if the limits' log level is at least `level`. Keeps errno. */
void vcuda_say(uint32_t level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Print once a process whatever the level: CUDA is being refused, and this is why. */
void vcuda_say_refusal(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Set by page.c whenever limits are read. */
extern uint32_t vcuda_say_level;

#endif
