/* Finds the account of the pool that stream-ordered memory comes from. */
#ifndef VCUDA_POOL_CHOICE_H
#define VCUDA_POOL_CHOICE_H

#include "cu_types.h"
#include "cuda/pool_account.h"

/* Set *account to the pool that an allocation on this stream will come from: `pool` itself if it is not NULL.
 * CUDA_SUCCESS with a NULL account: the allocation is not counted. Any other result is what the hook returns. Answers
 * of the driver are cached: the null stream of a process with several devices costs one driver call, any other stream
 * none. */
CUresult pool_choice(CUmemoryPool pool, CUstream stream, struct pool_account **account);

/* Call when a device gets another current pool, or a pool ends. */
void pool_choice_changed(void);

#endif
