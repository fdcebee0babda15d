/* The only interface to the dynamic loader. */
#ifndef VCUDA_LOADER_H
#define VCUDA_LOADER_H

#include <stdint.h>

/* Open a library by absolute path with RTLD_LOCAL. NULL if that fails. */
void *loader_open(const char *path);

/* A symbol of an opened library or of its dependencies. NULL if there is none. */
void *loader_find(void *handle, const char *name);

/* The address range [from, to) of the loaded object that contains `inside`; empty if there is no such object. */
struct extent {
    uintptr_t from, to;
};
struct extent loader_extent(const void *inside);

/* The lowest index of a word that occurs in the path of a loaded object; `count` if none does. */
unsigned loader_first_loaded(const char *const *words, unsigned count);

#endif
