/* What a program asks of the driver, a line each, at the end of the file that the key `trace` names. */
#define _GNU_SOURCE
#include "trace.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "config.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int file = -1;

static void open_file(void) {
    config_read();
    const char *path = config_text("trace");
    if (path)
        file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
}

bool trace_wanted(void) {
    pthread_once(&once, open_file);
    return file >= 0;
}

void trace(const char *format, ...) {
    char line[256];
    va_list arguments;
    if (!trace_wanted())
        return;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    if (length < 0 || length > (int)sizeof line - 2)
        return;
    line[length] = '\n';
    ssize_t ignored = write(file, line, (size_t)length + 1); /* one call: lines of threads stay whole */
    (void)ignored;
}
