/*
 * The part of the CUDA driver API that the stand-in models: result codes, handles and the structures it reads.
 * Names, numbers and field order are the interface's; the text is our own. Handles point straight at the
 * stand-in's own structures, so no table of handles is needed.
 */
#ifndef STANDIN_CU_H
#define STANDIN_CU_H

#include <stddef.h>
#include <stdint.h>

typedef enum CUresult {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_DEINITIALIZED = 4,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
    CUDA_ERROR_FILE_NOT_FOUND = 301,
    CUDA_ERROR_OPERATING_SYSTEM = 304,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_ILLEGAL_STATE = 401,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
    CUDA_ERROR_PEER_ACCESS_NOT_ENABLED = 705,
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
    CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE = 720,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904,
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
    CUDA_ERROR_CAPTURED_EVENT = 907,
    CUDA_ERROR_UNKNOWN = 999,
} CUresult;

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned int CUdeviceptr_v1;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct context *CUcontext;
typedef struct context *CUgreenCtx;
typedef void *CUdevResourceDesc;
typedef struct stream *CUstream;
typedef struct event *CUevent;
typedef struct module *CUmodule;
typedef struct module *CUlibrary;
typedef struct function *CUfunction;
typedef struct function *CUkernel;
typedef struct graph *CUgraph;
typedef struct node *CUgraphNode;
typedef struct graph_exec *CUgraphExec;
typedef struct pool *CUmemoryPool;
typedef struct array *CUarray;
typedef struct mipmap *CUmipmappedArray;
typedef struct external *CUexternalMemory;
typedef void (*CUhostFn)(void *);
typedef void (*CUstreamCallback)(CUstream, CUresult, void *);
typedef size_t (*CUoccupancyB2DSize)(int);

#define CU_STREAM_LEGACY ((CUstream)0x1)
#define CU_STREAM_PER_THREAD ((CUstream)0x2)

typedef struct CUuuid {
    unsigned char bytes[16];
} CUuuid;

typedef struct CUipcMemHandle {
    char reserved[64];
} CUipcMemHandle;

typedef struct CUdevprop {
    int max_threads_per_block, max_threads_dim[3], max_grid_size[3], shared_mem_per_block, total_constant_memory,
        simd_width, mem_pitch, regs_per_block, clock_rate, texture_align;
} CUdevprop;

typedef struct CUlaunchConfig {
    unsigned int grid[3], block[3], shared_bytes;
    CUstream stream;
    void *attributes;
    unsigned int attribute_count;
} CUlaunchConfig;

typedef struct CUDA_LAUNCH_PARAMS {
    CUfunction function;
    unsigned int grid[3], block[3], shared_bytes;
    CUstream stream;
    void **params;
} CUDA_LAUNCH_PARAMS;

/* Version 1 ends before `kern`. */
typedef struct CUDA_KERNEL_NODE_PARAMS {
    CUfunction function;
    unsigned int grid[3], block[3], shared_bytes;
    void **params;
    void **extra;
    CUkernel kernel;
    CUcontext context;
} CUDA_KERNEL_NODE_PARAMS;

typedef struct CUDA_MEMSET_NODE_PARAMS {
    CUdeviceptr dst;
    size_t pitch;
    unsigned int value, element_size;
    size_t width, height;
} CUDA_MEMSET_NODE_PARAMS;

typedef struct CUDA_HOST_NODE_PARAMS {
    CUhostFn fn;
    void *data;
} CUDA_HOST_NODE_PARAMS;

/* One end of a two- or three-dimensional copy. */
typedef struct CUDA_MEMCPY2D {
    size_t src_x, src_y;
    int src_type;
    const void *src_host;
    CUdeviceptr src_device;
    CUarray src_array;
    size_t src_pitch;
    size_t dst_x, dst_y;
    int dst_type;
    void *dst_host;
    CUdeviceptr dst_device;
    CUarray dst_array;
    size_t dst_pitch;
    size_t width, height;
} CUDA_MEMCPY2D;

typedef struct CUDA_MEMCPY3D {
    size_t src_x, src_y, src_z, src_lod;
    int src_type;
    const void *src_host;
    CUdeviceptr src_device;
    CUarray src_array;
    void *reserved0;
    size_t src_pitch, src_height;
    size_t dst_x, dst_y, dst_z, dst_lod;
    int dst_type;
    void *dst_host;
    CUdeviceptr dst_device;
    CUarray dst_array;
    void *reserved1;
    size_t dst_pitch, dst_height;
    size_t width, height, depth;
} CUDA_MEMCPY3D;

enum { MEMORY_HOST = 1, MEMORY_DEVICE = 2, MEMORY_ARRAY = 3, MEMORY_UNIFIED = 4 };

typedef struct CUDA_ARRAY_DESCRIPTOR {
    size_t width, height;
    int format;
    unsigned int channels;
} CUDA_ARRAY_DESCRIPTOR;

typedef struct CUDA_ARRAY3D_DESCRIPTOR {
    size_t width, height, depth;
    int format;
    unsigned int channels, flags;
} CUDA_ARRAY3D_DESCRIPTOR;

enum { ARRAY_LAYERED = 0x01, ARRAY_CUBEMAP = 0x04, ARRAY_SPARSE = 0x40, ARRAY_DEFERRED = 0x80 };

typedef struct CUDA_ARRAY_MEMORY_REQUIREMENTS {
    size_t size, alignment;
    unsigned int reserved[4];
} CUDA_ARRAY_MEMORY_REQUIREMENTS;

typedef struct CUmemLocation {
    int type, id;
} CUmemLocation;

enum { TYPE_PINNED = 1, TYPE_MANAGED = 2 }; /* types of an allocation */
enum {
    LOCATION_NONE = 0,
    LOCATION_DEVICE = 1,
    LOCATION_HOST = 2,
    LOCATION_HOST_NUMA = 3,
    LOCATION_HOST_NUMA_CURRENT = 4
};

typedef struct CUmemAllocationProp {
    int type, handle_types;
    CUmemLocation location;
    void *win32;
    unsigned char flags[8];
} CUmemAllocationProp;

typedef struct CUmemAccessDesc {
    CUmemLocation location;
    int flags;
} CUmemAccessDesc;

typedef struct CUmemPoolProps {
    int type, handle_types;
    CUmemLocation location;
    void *win32;
    size_t max_bytes;
    unsigned char reserved[56];
} CUmemPoolProps;

typedef struct CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
    int type;
    uint64_t handle[2];
    unsigned long long size;
    unsigned int flags, reserved[16];
} CUDA_EXTERNAL_MEMORY_HANDLE_DESC;

typedef struct CUDA_EXTERNAL_MEMORY_BUFFER_DESC {
    unsigned long long offset, size;
    unsigned int flags, reserved[16];
} CUDA_EXTERNAL_MEMORY_BUFFER_DESC;

typedef struct CUDA_MEM_ALLOC_NODE_PARAMS {
    CUmemPoolProps pool;
    const CUmemAccessDesc *access;
    size_t access_count, bytes;
    CUdeviceptr pointer;
} CUDA_MEM_ALLOC_NODE_PARAMS;

enum {
    NODE_KERNEL = 0,
    NODE_MEMCPY = 1,
    NODE_MEMSET = 2,
    NODE_HOST = 3,
    NODE_GRAPH = 4,
    NODE_EMPTY = 5,
    NODE_WAIT_EVENT = 6,
    NODE_EVENT_RECORD = 7,
    NODE_MEM_ALLOC = 10,
    NODE_MEM_FREE = 11,
};

typedef struct CUgraphNodeParams {
    int type, reserved0[3];
    union {
        CUDA_KERNEL_NODE_PARAMS kernel;
        struct {
            int flags, reserved;
            CUcontext context;
            CUDA_MEMCPY3D copy;
        } memcpy;
        CUDA_MEMSET_NODE_PARAMS memset;
        CUDA_HOST_NODE_PARAMS host;
        CUgraph child;
        CUevent event;
        CUDA_MEM_ALLOC_NODE_PARAMS alloc;
        CUdeviceptr free;
        char bytes[232];
    };
    long long reserved2;
} CUgraphNodeParams;

typedef struct CUgraphEdgeData {
    unsigned char from_port, to_port, type, reserved[5];
} CUgraphEdgeData;

typedef struct CUDA_GRAPH_INSTANTIATE_PARAMS {
    uint64_t flags;
    CUstream upload;
    CUgraphNode error_node;
    int result;
} CUDA_GRAPH_INSTANTIATE_PARAMS;

typedef struct CUgraphExecUpdateResultInfo {
    int result;
    CUgraphNode error_node, error_from;
} CUgraphExecUpdateResultInfo;

/* An old name that behaves as a newer one does: generate.py reads these rows, the compiler skips them. */
#define ALIAS(old, model) _Static_assert(sizeof #old > 1 && sizeof #model > 1, "")

#endif
