/* Copies and sets: their contents at once, their time on the stream. What a graph's copies and sets write is not
 * modelled. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>

#include "process.h"

/* Of one operation at most so much is really moved; the rest of a huge buffer has no contents. */
#define MOVED_MAX ((size_t)64 << 20)
/* Bytes a nanosecond: over the bus, inside the card. */
enum { BUS_RATE = 25, CARD_RATE = 1500, LEAST_NS = 1000 };

static bool is_host(const void *pointer) {
    process_lock();
    struct memory *memory = map_find((uintptr_t)pointer);
    bool host = !memory || memory->kind == HOST || memory->kind == REGISTERED;
    process_unlock();
    return host;
}

static bool is_captured(CUstream handle) {
    struct context *context = context_current();
    if (!context)
        return false;
    process_lock();
    bool captured = capturing(stream_of(context, handle));
    process_unlock();
    return captured;
}

/* The work on the stream, or the node in its capture. `wait`: the call returns when it is done. */
static CUresult submit(CUstream handle, size_t bytes, bool over_bus, const CUgraphNodeParams *node, bool wait) {
    NEED_CONTEXT(context);
    int64_t length = LEAST_NS + (int64_t)(bytes / (over_bus ? BUS_RATE : CARD_RATE));
    process_lock();
    struct stream *stream = stream_of(context, handle);
    CUresult result = CUDA_SUCCESS;
    if (capturing(stream)) {
        result = wait ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : capture_timed(stream, node, length);
        wait = false;
    } else {
        exec_work(stream, length, false);
    }
    process_unlock();
    if (wait)
        exec_stream_wait(stream);
    return result;
}

static const CUgraphNodeParams copied = {.type = NODE_MEMCPY};

static CUresult copy(void *to, const void *from, size_t bytes, CUstream stream, bool wait) {
    NEED_CONTEXT(context);
    (void)context;
    if (!bytes)
        return CUDA_SUCCESS;
    if (!to || !from)
        return CUDA_ERROR_INVALID_VALUE;
    bool captured = is_captured(stream);
    CUresult result = submit(stream, bytes, is_host(to) || is_host(from), &copied, wait);
    if (result == CUDA_SUCCESS && !captured)
        memmove(to, from, bytes < MOVED_MAX ? bytes : MOVED_MAX);
    return result;
}

#define AT(pointer) ((void *)(uintptr_t)(pointer))

CUresult model_cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy(AT(to), AT(from), bytes, NULL, true);
}
CUresult model_cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy(AT(to), AT(from), bytes, stream, false);
}
CUresult model_cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
    return copy(AT(to), from, bytes, NULL, true);
}
CUresult model_cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    return copy(AT(to), from, bytes, stream, false);
}
CUresult model_cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
    return copy(to, AT(from), bytes, NULL, true);
}
CUresult model_cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy(to, AT(from), bytes, stream, false);
}
CUresult model_cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy(AT(to), AT(from), bytes, NULL, false);
}
CUresult model_cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy(AT(to), AT(from), bytes, stream, false);
}
CUresult model_cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                            size_t bytes) {
    (void)to_context;
    (void)from_context;
    return copy(AT(to), AT(from), bytes, NULL, false);
}
CUresult model_cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                                 size_t bytes, CUstream stream) {
    (void)to_context;
    (void)from_context;
    return copy(AT(to), AT(from), bytes, stream, false);
}

/* ---- rows of two- and three-dimensional copies ----------------------------------------------------------------- */

/* One row of one end of a copy; `left` is what an array has from there on. */
static char *row(int type, const void *host, CUdeviceptr device, CUarray array, size_t pitch, size_t height, size_t x,
                 size_t y, size_t z, size_t *left) {
    *left = SIZE_MAX;
    if (type == MEMORY_ARRAY)
        return array ? array_row(array, x, y, z, left) : NULL;
    char *base = type == MEMORY_HOST ? (char *)(uintptr_t)host : AT(device);
    return base ? base + (z * height + y) * pitch + x : NULL;
}

CUresult copy_rows(const CUDA_MEMCPY3D *shape) {
    size_t left = MOVED_MAX;
    for (size_t z = 0; z < shape->depth; z++)
        for (size_t y = 0; y < shape->height; y++) {
            size_t from_left, to_left, bytes = shape->width;
            char *from = row(shape->src_type, shape->src_host, shape->src_device, shape->src_array, shape->src_pitch,
                             shape->src_height, shape->src_x, shape->src_y + y, shape->src_z + z, &from_left);
            char *to = row(shape->dst_type, shape->dst_host, shape->dst_device, shape->dst_array, shape->dst_pitch,
                           shape->dst_height, shape->dst_x, shape->dst_y + y, shape->dst_z + z, &to_left);
            if (!from || !to || bytes > from_left || bytes > to_left)
                return CUDA_ERROR_INVALID_VALUE;
            if (bytes > left)
                return CUDA_SUCCESS;
            memmove(to, from, bytes);
            left -= bytes;
        }
    return CUDA_SUCCESS;
}

static CUresult copy_shape(const CUDA_MEMCPY3D *shape, CUstream stream, bool async) {
    bool host = shape->src_type == MEMORY_HOST || shape->dst_type == MEMORY_HOST;
    bool captured = is_captured(stream);
    CUresult result = submit(stream, shape->width * shape->height * shape->depth, host, &copied, !async && host);
    return result == CUDA_SUCCESS && !captured ? copy_rows(shape) : result;
}
static CUresult copy_2d(const CUDA_MEMCPY2D *flat, CUstream stream, bool async) {
    if (!flat)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D shape = {.src_x = flat->src_x,
                           .src_y = flat->src_y,
                           .src_type = flat->src_type,
                           .src_host = flat->src_host,
                           .src_device = flat->src_device,
                           .src_array = flat->src_array,
                           .src_pitch = flat->src_pitch,
                           .dst_x = flat->dst_x,
                           .dst_y = flat->dst_y,
                           .dst_type = flat->dst_type,
                           .dst_host = flat->dst_host,
                           .dst_device = flat->dst_device,
                           .dst_array = flat->dst_array,
                           .dst_pitch = flat->dst_pitch,
                           .width = flat->width,
                           .height = flat->height,
                           .depth = 1};
    return copy_shape(&shape, stream, async);
}
CUresult model_cuMemcpy2D_v2(const CUDA_MEMCPY2D *shape) {
    return copy_2d(shape, NULL, false);
}
CUresult model_cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *shape) {
    return copy_2d(shape, NULL, false);
}
CUresult model_cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *shape, CUstream stream) {
    return copy_2d(shape, stream, true);
}
CUresult model_cuMemcpy3D_v2(const CUDA_MEMCPY3D *shape) {
    return shape ? copy_shape(shape, NULL, false) : CUDA_ERROR_INVALID_VALUE;
}
CUresult model_cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *shape, CUstream stream) {
    return shape ? copy_shape(shape, stream, true) : CUDA_ERROR_INVALID_VALUE;
}

/* ---- sets -------------------------------------------------------------------------------------------------------- */

/* Private pages set to zero are given back instead: a cleared buffer of many GiB costs nothing. */
static void clear(char *to, size_t bytes) {
    char *first = (char *)(((uintptr_t)to + 4095) & ~(uintptr_t)4095);
    char *last = (char *)((uintptr_t)(to + bytes) & ~(uintptr_t)4095);
    if (bytes < MOVED_MAX || first >= last) {
        memset(to, 0, bytes < MOVED_MAX ? bytes : MOVED_MAX);
        return;
    }
    if (madvise(first, (size_t)(last - first), MADV_REMOVE) != 0) /* shared pages, else private ones */
        madvise(first, (size_t)(last - first), MADV_DONTNEED);
    memset(to, 0, (size_t)(first - to));
    memset(last, 0, (size_t)(to + bytes - last));
}

static void set_row(char *to, uint32_t value, size_t width, size_t count) {
    size_t bytes = count * width;
    if (value == 0)
        clear(to, bytes);
    else if (width == 1)
        memset(to, (int)value, bytes < MOVED_MAX ? bytes : MOVED_MAX);
    else
        for (size_t at = 0; at + width <= (bytes < MOVED_MAX ? bytes : MOVED_MAX); at += width)
            memcpy(to + at, &value, width);
}

static void set_managed(CUdeviceptr to, size_t bytes) {
    process_lock();
    struct memory *memory = map_find((uintptr_t)to);
    if (memory && memory->kind == MANAGED)
        managed_set(memory, bytes);
    process_unlock();
}

static CUresult set(CUdeviceptr to, size_t pitch, uint32_t value, size_t width, size_t count, size_t rows,
                    CUstream stream) {
    NEED_CONTEXT(context);
    (void)context;
    if (!count || !rows)
        return CUDA_SUCCESS;
    process_lock();
    struct memory *memory = map_find((uintptr_t)to);
    bool inside = memory && ((rows - 1) * pitch + count * width) <= memory->bytes - ((uintptr_t)to - memory->base);
    process_unlock();
    bool captured = is_captured(stream); /* memory of a graph has an address before there is any */
    if ((!inside && !captured) || to % width)
        return CUDA_ERROR_INVALID_VALUE;
    if (!captured)
        set_managed(to, count * width * rows);
    CUgraphNodeParams node = {.type = NODE_MEMSET,
                              .memset = {.dst = to,
                                         .pitch = pitch,
                                         .value = value,
                                         .element_size = (unsigned int)width,
                                         .width = count,
                                         .height = rows}};
    CUresult result = submit(stream, count * width * rows, false, &node, false);
    for (size_t at = 0; result == CUDA_SUCCESS && !captured && at < rows; at++)
        set_row((char *)AT(to) + at * pitch, value, width, count);
    return result;
}

CUresult model_cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
    return set(to, 0, value, 1, count, 1, NULL);
}
CUresult model_cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count) {
    return set(to, 0, value, 2, count, 1, NULL);
}
CUresult model_cuMemsetD32_v2(CUdeviceptr to, unsigned int value, size_t count) {
    return set(to, 0, value, 4, count, 1, NULL);
}
CUresult model_cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
    return set(to, 0, value, 1, count, 1, stream);
}
CUresult model_cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
    return set(to, 0, value, 2, count, 1, stream);
}
CUresult model_cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count, CUstream stream) {
    return set(to, 0, value, 4, count, 1, stream);
}
CUresult model_cuMemsetD2D8_v2(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height) {
    return set(to, pitch, value, 1, width, height, NULL);
}
CUresult model_cuMemsetD2D16_v2(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height) {
    return set(to, pitch, value, 2, width, height, NULL);
}
CUresult model_cuMemsetD2D32_v2(CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height) {
    return set(to, pitch, value, 4, width, height, NULL);
}
CUresult model_cuMemsetD2D8Async(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height,
                                 CUstream stream) {
    return set(to, pitch, value, 1, width, height, stream);
}
CUresult model_cuMemsetD2D16Async(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height,
                                  CUstream stream) {
    return set(to, pitch, value, 2, width, height, stream);
}
CUresult model_cuMemsetD2D32Async(CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height,
                                  CUstream stream) {
    return set(to, pitch, value, 4, width, height, stream);
}
