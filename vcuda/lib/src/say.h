/* The one line on stderr: silence is the rule in a guest. What the host should know goes into a note. */
#ifndef VCUDA_SAY_H
#define VCUDA_SAY_H

/* Print "vcuda: ...", once a process: CUDA is refused, or nothing holds it, and this is why. Keeps errno. */
void vcuda_say_once(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
