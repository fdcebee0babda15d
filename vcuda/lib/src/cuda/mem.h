/* What frees of every sort have in common: the pointer decides how its memory was charged, not the call. */
#ifndef VCUDA_MEM_H
#define VCUDA_MEM_H

#include <stdbool.h>
#include <stdint.h>

#include "cu_types.h"
#include "cuda/allocation_table.h"

/* Before the driver frees a pointer, and after it: false if the pointer is not ours to count. */
bool mem_leave(CUdeviceptr pointer, struct allocation *item);
void mem_left(bool known, const struct allocation *item, CUresult result);

/* The name by which a descriptor of this allocation is known, and pinned until exported_pin() undoes it: what it is
 * charged stays with exported.c from now on. 0 if it is no memory that has granules of its own; *failed if there is no
 * memory to note it. */
uint64_t mem_export(CUdeviceptr base, bool *failed);

/* Is there an allocation that has this name, or for 0 one that is charged with others? */
bool mem_is_exported(CUdeviceptr base, uint64_t name);

#endif
