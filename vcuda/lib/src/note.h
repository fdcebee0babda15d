/* Notes for the host, in the usage page. */
#ifndef VCUDA_NOTE_H
#define VCUDA_NOTE_H

#include "vcuda_page.h"

/* Put a note into the ring; its number, time, process and framework are filled in. Any thread; never waits. */
void note_put(struct vcuda_usage *usage, const struct vcuda_note *note);

/* Send the host a note, at most one a second of each code and process: the page's counters tell what is left out.
 * `usage` is NULL in a process that is not attached: then the note goes into the container's usage page if there is one
 * that this process can write. Keeps errno. */
void note_send(struct vcuda_usage *usage, const struct vcuda_note *note);

/* Send a note that has nothing but a text. */
void note_text(struct vcuda_usage *usage, uint32_t code, const char *text);

#endif
