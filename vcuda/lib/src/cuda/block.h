/* Blocks of VMM memory and multicast objects: how many references this process has to each. */
#ifndef VCUDA_BLOCK_H
#define VCUDA_BLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda/allocation_table.h"

/* In the owner of a block without a card: a multicast object that other processes may have. */
#define BLOCK_WAS_EXPORTED (UINT64_C(1) << 32)

/* Hold a block: false if it is none of ours. */
bool block_hold(uint64_t handle);

void block_release(uint64_t handle);

/* The last reference of this process is gone, and the block is out of the table; its key is its handle. */
void block_end(const struct allocation *block);

#endif
