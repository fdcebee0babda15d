#include "log_once.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

void vcuda_log_once(const char *format, ...) {
    static bool said;
    if (__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
        return;
    int saved = errno;
    char text[512] = "vcuda: ";
    int used = 7;
    va_list arguments;
    va_start(arguments, format);
    int wanted = vsnprintf(text + used, sizeof text - (size_t)used - 1, format, arguments);
    va_end(arguments);
    if (wanted > 0) {
        used += wanted < (int)sizeof text - used - 2 ? wanted : (int)sizeof text - used - 2;
        text[used++] = '\n';
        ssize_t ignored = write(STDERR_FILENO, text, (size_t)used); /* one call: lines of processes stay whole */
        (void)ignored;
    }
    errno = saved;
}
