#include "cuda/block.h"

#include "cuda/device_map.h"
#include "cuda/exported.h"
#include "cuda/imported.h"

/* A binding ends with its object: what other processes may have of that, they may still hold. */
static void unbind(const struct allocation *binding, void *is_shared) {
    struct allocation block;
    if (*(const bool *)is_shared && allocation_get(ALLOCATION_PHYSICAL, binding->bytes, &block) &&
        block.card != CARD_NONE)
        exported_as(block.owner, -1);
    block_release(binding->bytes);
}

void block_end(const struct allocation *block) {
    if (block->card != CARD_NONE) {
        exported_let_go(block->owner, block->card, block->bytes);
        return;
    }
    bool is_shared = block->owner != 0;
    allocation_sweep(1u << ALLOCATION_BINDING, block->key, unbind, &is_shared);
    imported_unhold((int)(block->owner & INT32_MAX) - 1);
}

bool block_hold(uint64_t handle) {
    struct allocation block;
    return handle && allocation_count(ALLOCATION_PHYSICAL, handle, 1, &block);
}

void block_release(uint64_t handle) {
    struct allocation block;
    if (allocation_count(ALLOCATION_PHYSICAL, handle, -1, &block) && !block.count)
        block_end(&block);
}
