/*
 * cuGetProcAddress: the newest variant of a name that is no newer than the version asked for, in the stream mode
 * asked for (flag 1: legacy, 2: per thread, 0: legacy).
 */
#include <string.h>

#include "generated.h"
#include "process.h"
#include "trace.h"

enum { FOUND = 0, NO_SUCH_NAME = 1, TOO_OLD = 2 };

static CUresult resolve(const char *name, void **out, int version, uint64_t flags, int *status) {
    trace("resolve %s %d %d", name ? name : "", version, (int)flags);
    if (status)
        *status = NO_SUCH_NAME;
    if (!name || !out || flags > 2)
        return CUDA_ERROR_INVALID_VALUE;
    if (version > standin_cuda_version)
        return CUDA_ERROR_INVALID_VALUE;
    bool per_thread = flags == 2, known = false;
    const struct variant *best = NULL;
    for (int at = 0; at < standin_variant_count; at++) {
        const struct variant *variant = &standin_variants[at];
        int order = strcmp(variant->name, name);
        if (order > 0)
            break;
        if (order < 0)
            continue;
        known = true;
        if (variant->version > version || (variant->per_thread && !per_thread))
            continue;
        /* Per-thread names exist only where the stream matters; elsewhere the plain one answers. */
        bool newer =
            !best || variant->version > best->version || (variant->version == best->version && variant->per_thread);
        if (newer || (variant->per_thread && !best->per_thread))
            best = variant;
    }
    *out = best ? best->function : NULL;
    if (status)
        *status = best ? FOUND : known ? TOO_OLD : NO_SUCH_NAME;
    return best ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* The form of 11.3 has no status, and an error for what is not found; the second form succeeds without a pointer. */
CUresult model_cuGetProcAddress(const char *name, void **out, int version, uint64_t flags) {
    return resolve(name, out, version, flags, NULL);
}
CUresult model_cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status) {
    CUresult result = resolve(name, out, version, flags, status);
    return result == CUDA_ERROR_NOT_FOUND ? CUDA_SUCCESS : result;
}
