/* What streams take of their card. */
#ifndef VCUDA_STREAM_ACCOUNT_H
#define VCUDA_STREAM_ACCOUNT_H

#include "cu_types.h"

/* Have the driver destroy it: the next stream of its context uses its memory again. */
CUresult stream_account_destroy(CUstream stream);
CUresult stream_account_destroy_v2(CUstream stream);

#endif
