/* Recorded programs as text: tests/data/traces/README.md describes the format. */
#ifndef VCUDA_REPLAY_TRACE_H
#define VCUDA_REPLAY_TRACE_H

#include "program.h"

#include <stdio.h>

/* Read a trace. False: `error` says on which line what is wrong, and `trace` holds nothing. */
bool trace_read(FILE *file, struct trace *trace, char *error, size_t error_room);
void trace_free(struct trace *trace);

#endif
