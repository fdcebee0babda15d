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
typedef struct CUevent_st *CUevent;
typedef struct CUarray_st *CUarray;
typedef struct CUmipmappedArray_st *CUmipmappedArray;
typedef struct CUmemPool_st *CUmemoryPool;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUextMemory_st *CUexternalMemory;
typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUdevResourceDesc_st *CUdevResourceDesc;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef unsigned int CUdeviceptr_v1; /* of the functions without a version, from before 64-bit addresses */

typedef struct {
    unsigned char bytes[16];
} CUuuid;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_OPERATING_SYSTEM = 304,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_SYSTEM_NOT_READY = 802,
};

/* Where memory lies. Types above HOST_NUMA_CURRENT are parts of a card. */
typedef struct {
    int type;
    int id;
} CUmemLocation;

enum {
    CU_MEM_LOCATION_TYPE_DEVICE = 1,
    CU_MEM_LOCATION_TYPE_HOST = 2,
    CU_MEM_LOCATION_TYPE_HOST_NUMA = 3,
    CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT = 4,
};

typedef struct {
    int type;
    int requested_handle_types;
    CUmemLocation location;
    void *win32;
    unsigned char flags[8];
} CUmemAllocationProp;

typedef struct {
    int type;
    int handle_types;
    CUmemLocation location;
    void *win32;
    size_t max_size;
    unsigned char reserved[56];
} CUmemPoolProps;

enum {
    CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4,
    CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5,
    CU_MEMPOOL_ATTR_USED_MEM_CURRENT = 7,
    CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT = 0,
    CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT = 2,
};

typedef struct {
    unsigned int width, height;
    int format;
    unsigned int channels;
} CUDA_ARRAY_DESCRIPTOR_v1;

typedef struct {
    size_t width, height;
    int format;
    unsigned int channels;
} CUDA_ARRAY_DESCRIPTOR;

typedef struct {
    unsigned int width, height, depth;
    int format;
    unsigned int channels, flags;
} CUDA_ARRAY3D_DESCRIPTOR_v1;

typedef struct {
    size_t width, height, depth;
    int format;
    unsigned int channels, flags;
} CUDA_ARRAY3D_DESCRIPTOR;

/* Flags of an array. */
enum {
    CUDA_ARRAY3D_LAYERED = 0x01,
    CUDA_ARRAY3D_CUBEMAP = 0x04,
    CUDA_ARRAY3D_SPARSE = 0x40,
    CUDA_ARRAY3D_DEFERRED = 0x80
};

enum { CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1 };

/* One operation of cuMemMapArrayAsync. */
typedef struct {
    int resource_type;
    uint64_t resource; /* the array or mipmapped array */
    int subresource_type;
    uint64_t subresource[4];
    int operation; /* CU_MEM_OPERATION_TYPE_* */
    int handle_type;
    CUmemGenericAllocationHandle handle;
    unsigned long long offset;
    unsigned int device_mask, flags, reserved[2];
} CUarrayMapInfo;

enum { CU_MEM_OPERATION_TYPE_MAP = 1 };

/* Memory of another interface (Vulkan, a file descriptor); only its size is read. */
typedef struct {
    int type;
    uint64_t handle[2];
    unsigned long long size;
    unsigned int flags, reserved[16];
} CUDA_EXTERNAL_MEMORY_HANDLE_DESC;

typedef struct {
    CUmemPoolProps pool;
    const void *access;
    size_t access_count;
    size_t bytes;
    CUdeviceptr pointer;
} CUDA_MEM_ALLOC_NODE_PARAMS;

enum {
    CU_GRAPH_NODE_TYPE_KERNEL = 0,
    CU_GRAPH_NODE_TYPE_HOST = 3,
    CU_GRAPH_NODE_TYPE_GRAPH = 4,
    CU_GRAPH_NODE_TYPE_MEM_ALLOC = 10,
    CU_GRAPH_NODE_TYPE_MEM_FREE = 11
};
enum { CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH = 1, CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD = 2 };

/* cuCtxSetLimit: bytes of stack a thread, of the printf buffer, of the heap for malloc in kernels. */
enum { CU_LIMIT_STACK_SIZE = 0, CU_LIMIT_PRINTF_FIFO_SIZE = 1, CU_LIMIT_MALLOC_HEAP_SIZE = 2 };

enum { CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR = 39 };

typedef struct CUfunc_st *CUfunction;
typedef struct CUkern_st *CUkernel;
typedef struct CUmod_st *CUmodule;
typedef struct CUlib_st *CUlibrary;

enum { CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3 };

/* The first form ends before `kernel`. */
typedef struct {
    CUfunction function;
    unsigned int grid[3], block[3], shared;
    void **params, **extra;
    CUkernel kernel;
    CUcontext context;
} CUDA_KERNEL_NODE_PARAMS;

/* Of a node of any kind; read where it is a kernel. */
typedef struct {
    int type, reserved[3];
    CUDA_KERNEL_NODE_PARAMS kernel;
} CUgraphNodeParams;

/* What a launch says of itself; attributes are passed on unread. */
typedef struct {
    unsigned int grid[3], block[3], shared;
    CUstream stream;
    void *attributes;
    unsigned int attribute_count;
} CUlaunchConfig;

typedef struct {
    CUfunction function;
    unsigned int grid[3], block[3], shared;
    CUstream stream;
    void **params;
} CUDA_LAUNCH_PARAMS;

/* Shapes of copies. */
typedef struct {
    unsigned int from_x, from_y;
    int from_type;
    const void *from_host;
    CUdeviceptr_v1 from_device;
    CUarray from_array;
    unsigned int from_pitch;
    unsigned int to_x, to_y;
    int to_type;
    void *to_host;
    CUdeviceptr_v1 to_device;
    CUarray to_array;
    unsigned int to_pitch;
    unsigned int width, height;
} CUDA_MEMCPY2D_v1;

typedef struct {
    size_t from_x, from_y;
    int from_type;
    const void *from_host;
    CUdeviceptr from_device;
    CUarray from_array;
    size_t from_pitch;
    size_t to_x, to_y;
    int to_type;
    void *to_host;
    CUdeviceptr to_device;
    CUarray to_array;
    size_t to_pitch;
    size_t width, height;
} CUDA_MEMCPY2D;

typedef struct {
    unsigned int from_x, from_y, from_z, from_level;
    int from_type;
    const void *from_host;
    CUdeviceptr_v1 from_device;
    CUarray from_array;
    void *reserved0;
    unsigned int from_pitch, from_height;
    unsigned int to_x, to_y, to_z, to_level;
    int to_type;
    void *to_host;
    CUdeviceptr_v1 to_device;
    CUarray to_array;
    void *reserved1;
    unsigned int to_pitch, to_height;
    unsigned int width, height, depth;
} CUDA_MEMCPY3D_v1;

typedef struct {
    size_t from_x, from_y, from_z, from_level;
    int from_type;
    const void *from_host;
    CUdeviceptr from_device;
    CUarray from_array;
    void *reserved0;
    size_t from_pitch, from_height;
    size_t to_x, to_y, to_z, to_level;
    int to_type;
    void *to_host;
    CUdeviceptr to_device;
    CUarray to_array;
    void *reserved1;
    size_t to_pitch, to_height;
    size_t width, height, depth;
} CUDA_MEMCPY3D;

/* Flag of cuGetProcAddress: the caller was compiled for per-thread default streams. */
#define CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM 2u

#endif
