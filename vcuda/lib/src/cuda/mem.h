/* What frees of every sort have in common: the pointer decides how its memory was charged, not the call. */
#ifndef VCUDA_MEM_H
#define VCUDA_MEM_H

#include <stdbool.h>

#include "cu_types.h"
#include "cuda/allocation_table.h"

/* Before the driver frees a pointer, and after it: false if the pointer is not ours to count. */
bool mem_leave(CUdeviceptr pointer, struct allocation *item);
void mem_left(bool known, const struct allocation *item, CUresult result);

#endif
