/* Ids of contexts: unlike handles, ids are never reused. */
#ifndef VCUDA_CONTEXT_ID_H
#define VCUDA_CONTEXT_ID_H

#include <stdint.h>

#include "cu_types.h"

/* A context's id; 0 if the handle is not a context. */
uint64_t context_id_of(CUcontext context);

#endif
