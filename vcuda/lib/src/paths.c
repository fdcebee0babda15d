#include "paths.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#ifndef VCUDA_LIMITS_PATH
#define VCUDA_LIMITS_PATH "/etc/vcuda/limits"
#endif
#ifndef VCUDA_USAGE_PATH
#define VCUDA_USAGE_PATH "/etc/vcuda/usage"
#endif
#ifndef VCUDA_GATES_DIR
#define VCUDA_GATES_DIR "/etc/vcuda/gates"
#endif
#ifndef VCUDA_REAL_DIR
#define VCUDA_REAL_DIR "/usr/local/vcuda/real"
#endif

static bool join(char path[PATHS_MAX], const char *directory, const char *name) {
    const char *root = NULL;
#ifdef VCUDA_SANDBOX
    root = getenv("VCUDA_ROOT"); /* a sandbox's container is a directory; no library in a real one is built so */
#endif
    const char *parts[] = {root ? root : "", directory, name};
    size_t used = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        size_t length = strlen(parts[i]);
        if (length >= PATHS_MAX - used)
            return false;
        memcpy(path + used, parts[i], length);
        used += length;
    }
    path[used] = '\0';
    return true;
}

bool paths_limits(char path[PATHS_MAX]) {
    return join(path, VCUDA_LIMITS_PATH, "");
}

bool paths_usage(char path[PATHS_MAX]) {
    return join(path, VCUDA_USAGE_PATH, "");
}

bool paths_gate(char path[PATHS_MAX], const uint8_t uuid[16]) {
    static const char digits[] = "0123456789abcdef";
    char name[33];
    for (int i = 0; i < 16; i++) {
        name[2 * i] = digits[uuid[i] >> 4];
        name[2 * i + 1] = digits[uuid[i] & 15];
    }
    name[32] = '\0';
    return join(path, VCUDA_GATES_DIR "/", name);
}

bool paths_real_directory(char path[PATHS_MAX]) {
    return join(path, VCUDA_REAL_DIR, "");
}

bool paths_real(char path[PATHS_MAX], const char *name) {
    return join(path, VCUDA_REAL_DIR "/", name);
}
