/* Attaches a process to its container's control pages, and re-reads the limits when the host changes them. */
#ifndef VCUDA_ATTACHMENT_H
#define VCUDA_ATTACHMENT_H

#include "page.h"

enum vcuda_attachment {
    VCUDA_DETACHED,  /* not attempted yet */
    VCUDA_ATTACHED,  /* limits are in force; vcuda_usage() and vcuda_slot() are not NULL */
    VCUDA_UNLIMITED, /* the usage page is broken, and the host's policy is to run without limits then */
    VCUDA_REFUSED,   /* a page is broken; one line on stderr has named it */
};

/* Map the pages and claim a slot, once per process (again after fork). Any thread may call; never blocks. */
enum vcuda_attachment vcuda_attach(void);

enum vcuda_attachment vcuda_attached(void);

/* The newest limits, re-read when their generation changes; a torn copy leaves the last one in force.
 * NULL unless attached. Fields of one view belong together; take the pointer once per decision. */
const struct vcuda_limits_view *vcuda_limits(void);

/* Change the usage file's times, so that a host that watches the file reads it now. */
void vcuda_touch_usage(void);

/* The index of the card with this UUID in the pages: 0 .. VCUDA_MAX_CARDS - 1, or -1. */
int vcuda_card_of(const uint8_t uuid[16]);

/* Increment counters in the usage page's header; events before attaching are added on attaching. */
void vcuda_count_unknown(const char *name);
void vcuda_count_routed_by_name(const char *name);

#endif
