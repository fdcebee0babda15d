/* What streams take of their card. */
#ifndef VCUDA_STREAM_ACCOUNT_H
#define VCUDA_STREAM_ACCOUNT_H

#include "cu_types.h"
#include "cuda/allocation_table.h"

/* Have the driver destroy it: the next stream of its context uses its memory again. */
CUresult stream_account_destroy(CUstream stream);
CUresult stream_account_destroy_v2(CUstream stream);

/* It ended with its context, or unseen. */
void stream_account_gone(const struct allocation *stream);

#endif
