/* Attaching a process to its container's control pages, and reading the limits again when the host changes them. */
#ifndef VCUDA_ATTACHMENT_H
#define VCUDA_ATTACHMENT_H

#include "page.h"

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

/* Let the host, which may be watching the usage page's file, look at it now. */
void vcuda_touch_usage(void);

/* Which of the pages' cards has this UUID: 0 .. VCUDA_MAX_CARDS - 1, or -1. */
int vcuda_card_of(const uint8_t uuid[16]);

/* Counters of the usage page's header; what is counted before attaching is added then. */
void vcuda_count_unknown(const char *name);
void vcuda_count_routed_by_name(const char *name);

#endif
