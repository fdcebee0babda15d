/* The one line on stderr: silence is the rule in a guest. What the host should know goes into a note. */
#ifndef VCUDA_LOG_ONCE_H
#define VCUDA_LOG_ONCE_H

/* Print "vcuda: ...", once a process: CUDA is refused, or nothing holds it, and this is why. Keeps errno. */
void vcuda_log_once(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
