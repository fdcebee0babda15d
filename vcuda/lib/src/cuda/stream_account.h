/* Charges the memory that streams take on their card. */
#ifndef VCUDA_STREAM_ACCOUNT_H
#define VCUDA_STREAM_ACCOUNT_H

#include "cu_types.h"

/* Destroy the stream through the driver; the next stream of its context reuses its memory. */
CUresult stream_account_destroy(CUstream stream);
CUresult stream_account_destroy_v2(CUstream stream);

#endif
