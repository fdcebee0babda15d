/* What this process holds: a table from the driver's pointers and handles to what was charged for them. */
#ifndef VCUDA_HELD_H
#define VCUDA_HELD_H

#include <stdbool.h>
#include <stdint.h>

/* Kinds of one space have keys of one kind, so that a pointer is found however it was allocated. */
enum held_kind {
    HELD_LINEAR = 1, /* pointer: whole granules of its own */
    HELD_SMALL,      /* pointer: part of a granule that others share */
    HELD_ASYNC,      /* pointer: part of a pool, which carries the charge */
    HELD_GRANULE,    /* address / 2 MiB: a granule of small allocations; count says how many */
    HELD_ARRAY,      /* array or mipmapped array */
    HELD_PHYSICAL,   /* handle of VMM memory; count is handles and mappings; owner is 1 once it was exported */
    HELD_MAPPING,    /* address where VMM memory is mapped; owner is its handle */
    HELD_LEAVING,    /* the same while it is being unmapped */
    HELD_PIN,        /* a number; VMM memory mapped into a sparse array: owner is the array, bytes the handle */
    HELD_CONTEXT,    /* id of a context; owner is the primary context's if it is a green one */
    HELD_SETTING,    /* id of a context and number of a limit: what the setting takes; owner is the context */
    HELD_EXTERNAL,   /* memory imported from another interface */
    HELD_EXEC,       /* executable graph: what its allocations may take */
};

struct held {
    uint64_t key;
    uint64_t bytes;
    uint64_t owner; /* a context's id unless the kind says otherwise */
    uint32_t count;
    int8_t card;
    uint8_t kind;
};

enum held_put { HELD_NEW, HELD_REPLACED, HELD_FAILED };

/* Remember an item; *old gets the one that had its key, whose end nobody told us. HELD_FAILED: no memory for it. */
enum held_put held_put(const struct held *item, struct held *old);

/* Remember an item unless its key is taken. */
bool held_put_new(const struct held *item);

/* Take an item out, or copy it; false if there is none. */
bool held_take(enum held_kind kind, uint64_t key, struct held *item);
bool held_get(enum held_kind kind, uint64_t key, struct held *item);

/* Add to an item's count; what falls to zero is taken out. False if there is none. *item is as it is then. */
bool held_count(enum held_kind kind, uint64_t key, int by, struct held *item);

/* Change an item's owner. */
void held_set_owner(enum held_kind kind, uint64_t key, uint64_t owner);

/* Count an item up, or remember it with a count of one: true if it was not there. */
bool held_join(const struct held *item);

/* Take out every item of these kinds (bits 1 << kind) with this owner and give it to `each`, which may call back. */
void held_sweep(uint32_t kinds, uint64_t owner, void (*each)(const struct held *item, void *argument), void *argument);

#endif
