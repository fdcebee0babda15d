/* The one file that knows the dynamic loader. */
#ifndef VCUDA_LOADER_H
#define VCUDA_LOADER_H

#include <stdint.h>

/* Open a library by absolute path, with its symbols kept to ourselves. NULL if that fails. */
void *loader_open(const char *path);

/* A symbol of an opened library or of what it depends on. NULL if there is none. */
void *loader_find(void *handle, const char *name);

/* The addresses that the loaded object with `inside` in it lies in, [from, to); empty if there is no such object. */
struct extent {
    uintptr_t from, to;
};
struct extent loader_extent(const void *inside);

/* Which of these words is in the path of a loaded object: the lowest index; `count` if none is. */
unsigned loader_first_loaded(const char *const *words, unsigned count);

#endif
