/* Notes for the host, in the usage page. */
#ifndef VCUDA_NOTE_H
#define VCUDA_NOTE_H

#include "vcuda_page.h"

/* Put a note into the ring; its number, time and process are filled in. Any thread; waits for none. */
void note_put(struct vcuda_usage *usage, const struct vcuda_note *note);

/* A note to the host, one a second of each code and process: what is left out, the page's counters tell. Also from a
 * process that is not attached, if there is a usage page that it can write. Keeps errno. */
void vcuda_note(const struct vcuda_note *note);

/* The same with nothing but a text. */
void vcuda_note_text(uint32_t code, const char *text);

#endif
