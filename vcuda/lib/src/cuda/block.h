/* References that this process holds to blocks of VMM memory and to multicast objects. */
#ifndef VCUDA_BLOCK_H
#define VCUDA_BLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda/allocation_table.h"

/* Bit in the owner of a block without a card: a multicast object that was exported to other processes. */
#define BLOCK_WAS_EXPORTED (UINT64_C(1) << 32)

/* Add a reference to a block; false if the handle is not in the table. */
bool block_hold(uint64_t handle);

void block_release(uint64_t handle);

/* Called after the last reference of this process is gone and the block has left the table; its key is its handle. */
void block_end(const struct allocation *block);

#endif
