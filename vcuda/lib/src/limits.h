/* Reads the limits page: the newest valid copy, without waiting. */
#ifndef VCUDA_LIMITS_SIDE_H
#define VCUDA_LIMITS_SIDE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "page.h"

/* CRC-32C (Castagnoli), as in RFC 3720. `value` is 0 for the first piece, then the previous result. */
uint32_t vcuda_crc32c(uint32_t value, const void *data, size_t size);

/* Copy the newest valid copy of the mapped page to *view. Returns NULL, or the reason why there is no valid copy. */
const char *limits_read(const struct vcuda_limits *page, struct vcuda_limits_view *view);

#endif
