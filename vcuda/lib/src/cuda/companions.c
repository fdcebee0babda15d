/* The compilers a driver needs (ptxjitcompiler, nvvm, ...) are opened by SONAME when they are needed, and some of
 * them need others by SONAME. An object that is already loaded answers to its SONAME, whatever the search path. So
 * what the host put beside the real driver is opened by absolute path first; a missing one is the driver's affair. */
#include "companions.h"

#include <dirent.h>
#include <stdbool.h>
#include <string.h>

#include "interposer.h"
#include "loader.h"
#include "paths.h"

static bool is_companion(const char *name) {
    return !strncmp(name, "libnvidia-", 10) && strncmp(name, "libnvidia-ml.", 13) && strstr(name, ".so") != NULL;
}

/* One pass over the directory; returns how many could not be opened. */
static int open_all(const char *directory) {
    int failed = 0;
    DIR *list = opendir(directory);
    if (!list)
        return 0;
    for (struct dirent *entry; (entry = readdir(list));) {
        char path[PATHS_MAX];
        if (is_companion(entry->d_name) && paths_real(path, entry->d_name) && !loader_open(path))
            failed++;
    }
    closedir(list);
    return failed;
}

void companions_open(void) {
    static bool done;
    char directory[PATHS_MAX];
    if (__atomic_load_n(&done, __ATOMIC_ACQUIRE) || !paths_real_directory(directory))
        return;
    if (open_all(directory)) /* it may need one that came later */
        open_all(directory);
    __atomic_store_n(&done, true, __ATOMIC_RELEASE);
}
