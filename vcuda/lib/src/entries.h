/* What programs reach in place of the driver's functions. */
#ifndef VCUDA_ENTRIES_H
#define VCUDA_ENTRIES_H

/* What programs shall call for name `id`: our entry if it is hooked, else NULL. */
void *vcuda_entry(unsigned id);

#endif
