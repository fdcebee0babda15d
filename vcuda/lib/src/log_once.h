/* The library's only output on stderr: by default a guest is silent. Everything else is a note to the host (note.h). */
#ifndef VCUDA_LOG_ONCE_H
#define VCUDA_LOG_ONCE_H

/* Print "vcuda: ..." once per process: the reason why CUDA is refused, or runs without limits. Preserves errno. */
void vcuda_log_once(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
