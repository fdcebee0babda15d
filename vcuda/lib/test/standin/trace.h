/* For finding out what a program does: see `trace` in config.h. */
#ifndef STANDIN_TRACE_H
#define STANDIN_TRACE_H

#include <stdbool.h>

bool trace_wanted(void);
void trace(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
