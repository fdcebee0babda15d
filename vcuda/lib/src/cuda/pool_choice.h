/* Which pool's account stream-ordered memory comes from. */
#ifndef VCUDA_POOL_CHOICE_H
#define VCUDA_POOL_CHOICE_H

#include "cu_types.h"
#include "cuda/pool_account.h"

/* The account of the pool that an allocation on this stream will come from, of `pool` if it names one. CUDA_SUCCESS and
 * NULL: it is not counted; anything but CUDA_SUCCESS is the hook's answer. What was asked of the driver is remembered:
 * a null stream of a process with several devices costs one call, any other none. */
CUresult pool_choice(CUmemoryPool pool, CUstream stream, struct pool_account **account);

/* A device gets another pool to allocate from, or a pool ends. */
void pool_choice_changed(void);

#endif
