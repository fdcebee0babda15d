/* The library's side of the control pages: attaching to them, reading limits, counting usage. */
#ifndef VCUDA_PAGE_SIDE_H
#define VCUDA_PAGE_SIDE_H

#include <stdbool.h>
#include <stdint.h>

#include "vcuda_page.h"

/* One copy of the limits as it was when read: never changes, stays valid for seconds after a newer one exists. */
struct vcuda_limits_view {
    uint64_t generation;
    uint64_t heartbeat_ns;
    uint32_t flags; /* VCUDA_FLAG_* */
    uint32_t card_count;
    struct vcuda_card_limits card[VCUDA_MAX_CARDS];
};

enum vcuda_attachment {
    VCUDA_DETACHED,  /* not asked yet */
    VCUDA_ATTACHED,  /* limits are in force; vcuda_usage() and vcuda_slot() are not NULL */
    VCUDA_UNLIMITED, /* the usage page is broken and the host's policy says: run all the same */
    VCUDA_REFUSED,   /* a page is broken; one line on stderr has named it */
};

/* Map the pages and claim a slot, once a process (again after fork). Any thread; waits for none. */
enum vcuda_attachment vcuda_attach(void);

enum vcuda_attachment vcuda_attached(void);

/* The newest limits, re-read when their generation changes; a torn copy leaves the last one in force.
 * NULL unless attached. Fields of one view belong together; take the pointer once per decision. */
const struct vcuda_limits_view *vcuda_limits(void);

/* The same without a call, for the path of every launch: NULL also if a newer copy may be there. */
struct vcuda_page_view {
    const struct vcuda_limits *limits;
    const struct vcuda_limits_view *current;
    uint64_t seen[2]; /* the page's generation words when `current` was found to be the newest */
};
extern struct vcuda_page_view *vcuda_page_view;

static inline uint64_t vcuda_generation_word(const struct vcuda_limits *page, int copy) {
    return __atomic_load_n(&page->copy[copy].generation, __ATOMIC_ACQUIRE);
}

static inline const struct vcuda_limits_view *vcuda_limits_here(void) {
    struct vcuda_page_view *page_view = __atomic_load_n(&vcuda_page_view, __ATOMIC_ACQUIRE);
    if (!page_view ||
        vcuda_generation_word(page_view->limits, 0) != __atomic_load_n(&page_view->seen[0], __ATOMIC_RELAXED) ||
        vcuda_generation_word(page_view->limits, 1) != __atomic_load_n(&page_view->seen[1], __ATOMIC_RELAXED))
        return NULL;
    return __atomic_load_n(&page_view->current, __ATOMIC_ACQUIRE);
}

/* The container's words and this process's slot; NULL unless attached. A child of fork has none. */
struct vcuda_usage *vcuda_usage(void);
struct vcuda_slot *vcuda_slot(void);

/* Which of the pages' cards has this UUID: 0 .. VCUDA_MAX_CARDS - 1, or -1. */
int vcuda_card_of(const uint8_t uuid[16]);

/* Counters of the usage page's header; what is counted before attaching is added then. */
void vcuda_count_unknown(const char *name);
void vcuda_count_routed_by_name(const char *name);

/* A note from a process that is not attached, if the usage page is there and whole; else nothing. Keeps errno. */
void vcuda_note_outside(const struct vcuda_note *note);

/* Free the slots of dead processes and make `charged` true again if there were any. Returns how many. */
unsigned vcuda_reap(void);

/* CLOCK_MONOTONIC in ns, the clock of every time in the pages. */
uint64_t vcuda_now_ns(void);

#endif
