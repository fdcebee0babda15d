/* The few types and values of the CUDA driver API that the library itself handles, in our own words.
 * Sizes are those of the 64-bit ABI; an enumeration is an int there. */
#ifndef VCUDA_CU_TYPES_H
#define VCUDA_CU_TYPES_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef uint64_t cuuint64_t;
typedef int CUdriverProcAddressQueryResult;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;

typedef struct {
    unsigned char bytes[16];
} CUuuid;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_SYSTEM_NOT_READY = 802,
};

/* Flag of cuGetProcAddress: the caller was compiled for per-thread default streams. */
#define CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM 2u

#endif
