/* References to blocks of VMM memory that are neither handles nor mappings of this file's own calls. */
#ifndef VCUDA_VMM_H
#define VCUDA_VMM_H

#include <stdbool.h>
#include <stdint.h>

/* Hold a block: false if it is none of ours. */
bool vmm_add_reference(uint64_t handle);

void vmm_release_reference(uint64_t handle);

#endif
