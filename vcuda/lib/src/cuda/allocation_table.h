/* What this process holds: a table from the driver's pointers and handles to what was charged for them. */
#ifndef VCUDA_ALLOCATION_TABLE_H
#define VCUDA_ALLOCATION_TABLE_H

#include <stdbool.h>
#include <stdint.h>

/* Kinds of one space have keys of one kind, so that a pointer is found however it was allocated. */
enum allocation_kind {
    ALLOCATION_LINEAR = 1, /* pointer: whole granules of its own */
    ALLOCATION_SMALL,      /* pointer: part of a granule that others share, and carries the charge */
    ALLOCATION_MANAGED,    /* pointer: whole granules, which may be elsewhere than on the card */
    ALLOCATION_ASYNC,      /* pointer: part of a pool, which carries the charge */
    ALLOCATION_GRAPH,      /* pointer: what a graph left allocated; owner is its pool, count the pool's epoch */
    ALLOCATION_GRANULE,    /* address / 2 MiB: a granule of small allocations; count says how many */
    ALLOCATION_ARRAY,      /* array or mipmapped array */
    ALLOCATION_PHYSICAL,   /* handle of VMM memory; count is handles, mappings and bindings; owner is its name among
                              exports. Without a card it is an import: owner is a descriptor that holds it, plus one */
    ALLOCATION_ENDING,     /* address: VMM memory whose last reference is the mapping there that is being unmapped */
    ALLOCATION_BINDING,    /* place in a multicast object: owner is the object's handle, bytes that of what is bound */
    ALLOCATION_MAPPING,    /* address where VMM memory is mapped; owner is its handle */
    ALLOCATION_LEAVING,    /* the same while it is being unmapped */
    ALLOCATION_PIN,        /* a number; VMM memory mapped into a sparse array: owner is the array, bytes the handle */
    ALLOCATION_CONTEXT,    /* id of a context; owner is the primary context's if it is a green one */
    ALLOCATION_SETTING,  /* id of a context and number of a limit (setting.c has more): what the setting takes; owner is
                            the context */
    ALLOCATION_EXTERNAL, /* memory imported from another interface */
    ALLOCATION_EXEC,     /* executable graph: owner is its profile, count its device, bytes its flags */
    ALLOCATION_STREAM,   /* stream */
    ALLOCATION_STREAMS,  /* id of a context: count is how many streams it has, plus one */
    ALLOCATION_FUNCTION, /* function not launched yet, or large kernel: bytes is its local memory a thread */
};

struct allocation {
    uint64_t key;
    uint64_t bytes;
    uint64_t owner; /* a context's id unless the kind says otherwise */
    uint32_t count;
    int8_t card;
    uint8_t kind;
};

enum allocation_put { ALLOCATION_NEW, ALLOCATION_REPLACED, ALLOCATION_FAILED, ALLOCATION_STALE };

/* Remember an item; *old gets the one that had its key, whose end nobody told us. ALLOCATION_FAILED: no memory for it.
 */
enum allocation_put allocation_put(const struct allocation *item, struct allocation *old);

/* The same, unless *word is no longer `value`: ALLOCATION_STALE. Who changes the word and sweeps afterwards finds every
 * item that was put before. */
enum allocation_put allocation_put_while(const struct allocation *item, struct allocation *old, const uint64_t *word,
                                         uint64_t value);

/* Remember an item unless its key is taken. */
bool allocation_put_new(const struct allocation *item);

/* Take an item out, or copy it; false if there is none. */
bool allocation_take(enum allocation_kind kind, uint64_t key, struct allocation *item);
bool allocation_get(enum allocation_kind kind, uint64_t key, struct allocation *item);

/* Add to an item's count; what falls to zero is taken out. False if there is none. *item is as it is then. */
bool allocation_count(enum allocation_kind kind, uint64_t key, int by, struct allocation *item);

/* Change an item's owner. */
void allocation_set_owner(enum allocation_kind kind, uint64_t key, uint64_t owner);

/* Count an item up, or remember it with a count of one: true if it was not there. */
bool allocation_join(const struct allocation *item);

/* Take out every item of these kinds (bits 1 << kind) with this owner and give it to `each`, which may call back. */
void allocation_sweep(uint32_t kinds, uint64_t owner, void (*each)(const struct allocation *item, void *argument),
                      void *argument);

/* Show `each` every item of this kind with this owner. It must not call back, and sees no state of one moment. */
void allocation_visit(enum allocation_kind kind, uint64_t owner,
                      void (*each)(const struct allocation *item, void *argument), void *argument);

#endif
