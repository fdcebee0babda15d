/* Access to the control pages for every part of the library: the limits in force, the usage page, the process's slot,
 * and the clock of all times in them. attachment.h maps the pages. */
#ifndef VCUDA_PAGE_SIDE_H
#define VCUDA_PAGE_SIDE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vcuda_page.h"

/* An immutable copy of the limits; it stays valid for seconds after a newer one exists. */
struct vcuda_limits_view {
    uint64_t generation;
    uint64_t heartbeat_ns;
    uint32_t flags; /* VCUDA_FLAG_* */
    uint32_t card_count;
    struct vcuda_card_limits card[VCUDA_MAX_CARDS];
};

/* This process's view of its pages, from attaching to the next fork. */
struct vcuda_page_view {
    const struct vcuda_limits *limits;
    const struct vcuda_limits_view *current;
    uint64_t
        seen[2]; /* the page's generation words when `current` was found to be the newest; written after `current` */
    struct vcuda_usage *usage;
    struct vcuda_slot *slot;
};
extern struct vcuda_page_view *vcuda_page_view;

static inline uint64_t vcuda_generation_word(const struct vcuda_limits *page, int copy) {
    return __atomic_load_n(&page->copy[copy].generation, __ATOMIC_ACQUIRE);
}

/* The limits in force, without a function call, for the launch path. NULL unless attached. Also NULL if the host may
 * have written a newer copy; vcuda_limits() then reads it. */
static inline const struct vcuda_limits_view *vcuda_limits_here(void) {
    struct vcuda_page_view *page_view = __atomic_load_n(&vcuda_page_view, __ATOMIC_ACQUIRE);
    if (!page_view ||
        vcuda_generation_word(page_view->limits, 0) != __atomic_load_n(&page_view->seen[0], __ATOMIC_ACQUIRE) ||
        vcuda_generation_word(page_view->limits, 1) != __atomic_load_n(&page_view->seen[1], __ATOMIC_ACQUIRE))
        return NULL;
    return __atomic_load_n(&page_view->current, __ATOMIC_ACQUIRE);
}

/* The container's usage page and this process's slot; NULL unless attached, hence in a child of fork. */
struct vcuda_usage *vcuda_usage(void);
struct vcuda_slot *vcuda_slot(void);

/* Map the file `path`, which must have exactly `size` bytes. Returns NULL, or the reason for the failure, with its
 * errno (if any) in *error. */
const char *page_map(const char *path, size_t size, bool writable, void **mapped, int *error);

/* NULL if this is a usage page of the library's version, else a description of what is wrong with it. */
const char *page_judge_usage(const struct vcuda_usage *usage);

/* CLOCK_MONOTONIC in ns, the clock of every time in the pages. */
uint64_t vcuda_now_ns(void);

#endif
