/* Maps what the driver's resolver returned to the name of the function, and the name to the library's hook. */
#ifndef VCUDA_ROUTE_H
#define VCUDA_ROUTE_H

#include <stdbool.h>

/* What the program gets instead of `pointer`, the driver's answer for (symbol, version, flags): the library's entry if
 * the function is hooked, else `pointer` itself. */
void *route(const char *symbol, int version, bool per_thread, void *pointer);

#endif
