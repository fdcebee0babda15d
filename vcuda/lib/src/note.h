/* Notes to the host, in the usage page. */
#ifndef VCUDA_NOTE_H
#define VCUDA_NOTE_H

#include "vcuda_page.h"

/* Put a note into the ring; fills in its number, time, process and framework. Any thread may call; never blocks. */
void note_put(struct vcuda_usage *usage, const struct vcuda_note *note);

/* Send a note to the host, at most one per second for each code and process; the page's counters include the omitted
 * ones. If the process is not attached (`usage` NULL), the note goes into the container's usage page if it exists and
 * is writable. Preserves errno. */
void note_send(struct vcuda_usage *usage, const struct vcuda_note *note);

/* Send a note that consists of a text only. */
void note_text(struct vcuda_usage *usage, uint32_t code, const char *text);

#endif
