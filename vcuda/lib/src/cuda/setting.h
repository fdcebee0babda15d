/* What a context takes beyond its reserve: by its settings, and by what its kernels and streams need. */
#ifndef VCUDA_SETTING_H
#define VCUDA_SETTING_H

#include <stdint.h>

#include "cu_types.h"
#include "cuda/context_registry.h"

/* Bytes of stack and local memory a thread that every context has from the start. */
#define SETTING_LOCAL_OWN 1024u

/* A kernel of this context is about to run that needs so many bytes of local memory a thread: charge what the context
 * has not taken yet. CUDA_SUCCESS or CUDA_ERROR_OUT_OF_MEMORY. */
CUresult setting_local(const struct current_context *where, uint64_t bytes);

/* The context is about to have so many streams at once: the same for what they take. */
CUresult setting_streams(const struct current_context *where, uint32_t streams);

#endif
