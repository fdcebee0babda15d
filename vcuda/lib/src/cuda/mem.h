/* What all free calls have in common: the pointer, not the call, decides how its memory was charged. */
#ifndef VCUDA_MEM_H
#define VCUDA_MEM_H

#include <stdbool.h>
#include <stdint.h>

#include "cu_types.h"
#include "cuda/allocation_table.h"

/* Call mem_leave() before the driver frees a pointer, mem_left() with its result (`known`) afterwards. False: the
 * pointer is not counted by the library. */
bool mem_leave(CUdeviceptr pointer, struct allocation *item);
void mem_left(bool known, const struct allocation *item, CUresult result);

/* Name and pin an allocation that is exported as a descriptor. Its charge is managed by exported.c from now on;
 * exported_pin() releases the pin. 0 if it is not memory with granules of its own; *failed if out of memory. */
uint64_t mem_export(CUdeviceptr base, bool *failed);

/* True if an allocation at `base` has this export name; for name 0, if it is charged together with others. */
bool mem_is_exported(CUdeviceptr base, uint64_t name);

#endif
