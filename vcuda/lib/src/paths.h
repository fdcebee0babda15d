/* Paths of the library's files in the container. The tenant cannot change them: no environment variable is read. */
#ifndef VCUDA_PATHS_H
#define VCUDA_PATHS_H

#include <stdbool.h>
#include <stdint.h>

#define PATHS_MAX 512

/* Each function fills `path`, or returns false if it does not fit. */
bool paths_limits(char path[PATHS_MAX]);
bool paths_usage(char path[PATHS_MAX]);
bool paths_gate(char path[PATHS_MAX], const uint8_t uuid[16]);
bool paths_real_directory(char path[PATHS_MAX]);
bool paths_real(char path[PATHS_MAX], const char *name);

#endif
