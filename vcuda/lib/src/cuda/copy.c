/* Copies and sets. Sets and copies within the card use what kernels use, and are charged like them; copies over a bus
 * are not, and their time is kept out of the spans that kernels beside them are measured in. */
#include "cuda/stream_meter.h"
#include "cuda/throttle.h"
#include "interposer.h"

#include <string.h>

#define CU_MEMORYTYPE_HOST 1
#define CU_MEMORYTYPE_UNIFIED 4
#define CU_POINTER_ATTRIBUTE_MEMORY_TYPE 2
/* Where the addresses must tell, it is asked only when the answer is worth the question. */
#define ASK_BYTES (1u << 20)

static bool stays(int from, int to) {
    return from != CU_MEMORYTYPE_HOST && to != CU_MEMORYTYPE_HOST && from != CU_MEMORYTYPE_UNIFIED &&
           to != CU_MEMORYTYPE_UNIFIED;
}

static bool is_on_card(CUdeviceptr address) {
    unsigned int type = 0;
    return real.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) == CUDA_SUCCESS &&
           type != CU_MEMORYTYPE_HOST;
}

static size_t copy_bytes_of(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return bytes >= ASK_BYTES && is_on_card(to) && is_on_card(from) ? bytes : 0;
}

#define BYTES_2D(shape)                                                                                                \
    (shape && stays((shape)->from_type, (shape)->to_type) ? (size_t)(shape)->width * (shape)->height : 0)
#define BYTES_3D(shape)                                                                                                \
    (shape && stays((shape)->from_type, (shape)->to_type) ? (size_t)(shape)->width * (shape)->height * (shape)->depth  \
                                                          : 0)

static size_t flat(const CUDA_MEMCPY2D *shape) {
    return BYTES_2D(shape);
}
static size_t flat_v1(const CUDA_MEMCPY2D_v1 *shape) {
    return BYTES_2D(shape);
}
static size_t solid(const CUDA_MEMCPY3D *shape) {
    return BYTES_3D(shape);
}
static size_t solid_v1(const CUDA_MEMCPY3D_v1 *shape) {
    return BYTES_3D(shape);
}
#define copy_bytes_2d(shape) _Generic((shape), const CUDA_MEMCPY2D *: flat, const CUDA_MEMCPY2D_v1 *: flat_v1)(shape)
#define copy_bytes_3d(shape) _Generic((shape), const CUDA_MEMCPY3D *: solid, const CUDA_MEMCPY3D_v1 *: solid_v1)(shape)

/* An asynchronous call returns before its work has run. */
static inline bool (*begin_of(const char *name))(struct throttled_work *, CUstream, bool, const void *, uint64_t) {
    return strstr(name, "Async") ? throttle_begin : throttle_begin_blocking;
}

/* Kinds of work are told apart by what they do and by how many bytes, in powers of two. */
#define CARD(name, per_thread, parameters, arguments, amount, on)                                                      \
    CUresult hook_##name parameters {                                                                                  \
        struct throttled_work work;                                                                                    \
        size_t how_many = amount;                                                                                      \
        if (!how_many)                                                                                                 \
            stream_meter_passes(on, per_thread);                                                                       \
        if (!how_many || !throttle_may_wait() || !begin_of(#name)(&work, on, per_thread, hook_##name, how_many))       \
            return real.name arguments;                                                                                \
        CUresult result = real.name arguments;                                                                         \
        throttle_end(&work, result);                                                                                   \
        return result;                                                                                                 \
    }
#define BUS(name, per_thread, parameters, arguments, on)                                                               \
    CUresult hook_##name parameters {                                                                                  \
        stream_meter_passes(on, per_thread);                                                                           \
        return real.name arguments;                                                                                    \
    }
#include "cuda/copies.def"
