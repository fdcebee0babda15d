/* The allocations of this process: a table from driver pointers and handles to the charge for each. Any thread may
 * call. */
#ifndef VCUDA_ALLOCATION_TABLE_H
#define VCUDA_ALLOCATION_TABLE_H

#include <stdbool.h>
#include <stdint.h>

/* Kinds that share a key space (all pointers, for example) have comparable keys, so a pointer is found however it was
 * allocated. */
enum allocation_kind {
    ALLOCATION_LINEAR = 1, /* pointer: whole granules of its own */
    ALLOCATION_SMALL,      /* pointer: part of a granule shared by small allocations; the granule carries the charge */
    ALLOCATION_MANAGED,    /* pointer: whole granules, which need not be on the card */
    ALLOCATION_ASYNC,      /* pointer: part of a pool, which carries the charge */
    ALLOCATION_GRAPH,      /* pointer: memory that a graph left allocated; owner is its pool, count the pool's epoch */
    ALLOCATION_GRANULE,    /* address / 2 MiB: a granule of small allocations; count is their number */
    ALLOCATION_ARRAY,      /* array or mipmapped array */
    ALLOCATION_PHYSICAL,   /* handle of VMM memory; count is the sum of handles, mappings and bindings; owner is its
                              export name. Without a card it is an import: owner is a descriptor that holds it, plus one
                            */
    ALLOCATION_ENDING,     /* address: VMM memory whose last reference is a mapping that is being unmapped */
    ALLOCATION_BINDING,    /* offset in a multicast object: owner is the object's handle, bytes the handle of the bound
                              memory */
    ALLOCATION_MAPPING,    /* address where VMM memory is mapped; owner is its handle */
    ALLOCATION_LEAVING,    /* ALLOCATION_MAPPING while it is being unmapped */
    ALLOCATION_PIN, /* a number; VMM memory mapped into a sparse array: owner is the array, bytes the memory's handle */
    ALLOCATION_CONTEXT,  /* id of a context; owner is the primary context's id for a green context */
    ALLOCATION_SETTING,  /* id of a context and number of a limit (see setting.c); bytes is the memory that the limit
                            takes, owner the context */
    ALLOCATION_EXTERNAL, /* memory imported from another interface */
    ALLOCATION_EXEC,     /* executable graph: owner is its profile, count its device, bytes its flags */
    ALLOCATION_STREAM,   /* stream */
    ALLOCATION_STREAMS,  /* id of a context: count is its number of streams, plus one */
    ALLOCATION_FUNCTION, /* function not launched yet, or large kernel: bytes is its local memory per thread */
};

struct allocation {
    uint64_t key;
    uint64_t bytes;
    uint64_t owner; /* a context's id unless the kind documents another meaning */
    uint32_t count;
    int8_t card;
    uint8_t kind;
};

enum allocation_put { ALLOCATION_NEW, ALLOCATION_REPLACED, ALLOCATION_FAILED, ALLOCATION_STALE };

/* Insert an item. If its key was taken, *old receives the previous item, whose end was not observed. ALLOCATION_FAILED:
 * out of memory. */
enum allocation_put allocation_put(const struct allocation *item, struct allocation *old);

/* Like allocation_put(), but returns ALLOCATION_STALE if *word no longer equals `value`. A thread that changes the word
 * and then sweeps finds every item inserted before the change. */
enum allocation_put allocation_put_while(const struct allocation *item, struct allocation *old, const uint64_t *word,
                                         uint64_t value);

/* Insert an item unless its key is taken; returns whether it was inserted. */
bool allocation_put_new(const struct allocation *item);

/* Remove an item (take) or copy it (get) into *item; false if it does not exist. */
bool allocation_take(enum allocation_kind kind, uint64_t key, struct allocation *item);
bool allocation_get(enum allocation_kind kind, uint64_t key, struct allocation *item);

/* Add `by` to an item's count and copy the result to *item; an item whose count falls to zero is removed. False if it
 * does not exist. */
bool allocation_count(enum allocation_kind kind, uint64_t key, int by, struct allocation *item);

/* Change an item's owner. */
void allocation_set_owner(enum allocation_kind kind, uint64_t key, uint64_t owner);

/* Insert an item with a count of one, or increment the count of the existing one. True if it was inserted. */
bool allocation_join(const struct allocation *item);

/* Remove every item with this owner whose kind is in `kinds` (bits 1 << kind) and pass it to `each`, which may call
 * this table. */
void allocation_sweep(uint32_t kinds, uint64_t owner, void (*each)(const struct allocation *item, void *argument),
                      void *argument);

/* Pass every item of this kind and owner to `each`, which must not call this table. Not an atomic snapshot. */
void allocation_visit(enum allocation_kind kind, uint64_t owner,
                      void (*each)(const struct allocation *item, void *argument), void *argument);

#endif
