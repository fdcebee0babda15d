#include "say.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

uint32_t vcuda_say_level;

static void line(const char *format, va_list arguments) {
    int saved = errno;
    char text[512] = "vcuda: ";
    int used = 7;
    int wanted = vsnprintf(text + used, sizeof text - (size_t)used - 1, format, arguments);
    if (wanted > 0) {
        used += wanted < (int)sizeof text - used - 2 ? wanted : (int)sizeof text - used - 2;
        text[used++] = '\n';
        ssize_t ignored = write(STDERR_FILENO, text, (size_t)used); /* one call: lines of processes stay whole */
        (void)ignored;
    }
    errno = saved;
}

void vcuda_say(uint32_t level, const char *format, ...) {
    if (level > __atomic_load_n(&vcuda_say_level, __ATOMIC_RELAXED))
        return;
    va_list arguments;
    va_start(arguments, format);
    line(format, arguments);
    va_end(arguments);
}

void vcuda_say_refusal(const char *format, ...) {
    static bool said;
    if (__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
        return;
    va_list arguments;
    va_start(arguments, format);
    line(format, arguments);
    va_end(arguments);
}
