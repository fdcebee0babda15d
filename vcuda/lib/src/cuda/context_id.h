/* The number of a context: unlike its handle, never used twice. */
#ifndef VCUDA_CONTEXT_ID_H
#define VCUDA_CONTEXT_ID_H

#include <stdint.h>

#include "cu_types.h"

/* A context's id; 0 if it is none. */
uint64_t context_id_of(CUcontext context);

#endif
