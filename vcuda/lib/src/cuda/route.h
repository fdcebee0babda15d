/* From what the driver's resolver returned to the name it is, and from there to our hook. */
#ifndef VCUDA_ROUTE_H
#define VCUDA_ROUTE_H

#include <stdbool.h>

/* What the program shall get instead of `pointer`, the driver's answer for (symbol, version, flags): our entry if it
 * is hooked, else `pointer` itself. */
void *route(const char *symbol, int version, bool per_thread, void *pointer);

#endif
