/* cuGetProcAddress, both forms: the driver answers first, with the caller's own arguments; then its answer is routed.
 * The runtime library asks for everything this way, before cuInit, and asks for the resolver itself too. */
#include "cuda/route.h"
#include "interposer.h"

static void replace(const char *symbol, void **pfn, int version, cuuint64_t flags) {
    if (symbol && *symbol && pfn && *pfn)
        *pfn = route(symbol, version, (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0, *pfn);
}

CUresult hook_cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags) {
    CUresult result = real.cuGetProcAddress(symbol, pfn, version, flags);
    if (result == CUDA_SUCCESS)
        replace(symbol, pfn, version, flags);
    return result;
}

CUresult hook_cuGetProcAddress_v2(const char *symbol, void **pfn, int version, cuuint64_t flags,
                                  CUdriverProcAddressQueryResult *status) {
    CUresult result = real.cuGetProcAddress_v2(symbol, pfn, version, flags, status);
    if (result == CUDA_SUCCESS)
        replace(symbol, pfn, version, flags);
    return result;
}
