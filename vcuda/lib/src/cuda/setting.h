/* Charges what a context takes beyond its reserve: for its limits, and for the needs of its kernels and streams. */
#ifndef VCUDA_SETTING_H
#define VCUDA_SETTING_H

#include <stdint.h>

#include "cu_types.h"
#include "cuda/context_registry.h"

/* Bytes of stack and local memory per thread that every context has from the start. */
#define SETTING_LOCAL_OWN 1024u

/* A kernel that needs `bytes` of local memory per thread is about to run in this context: charge what the context has
 * not taken yet. CUDA_SUCCESS or CUDA_ERROR_OUT_OF_MEMORY. */
CUresult setting_local(const struct current_context *where, uint64_t bytes);

/* The context is about to have this many streams at once: charge what they take. Results as of setting_local(). */
CUresult setting_streams(const struct current_context *where, uint32_t streams);

#endif
