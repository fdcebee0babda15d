/* The library's entry points, which programs reach in place of the driver's functions. */
#ifndef VCUDA_ENTRIES_H
#define VCUDA_ENTRIES_H

/* The library's entry for name `id` if it is hooked, else NULL. */
void *vcuda_entry(unsigned id);

#endif
