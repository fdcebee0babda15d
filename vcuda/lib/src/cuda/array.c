/* Arrays and mipmapped arrays; and VMM memory mapped into sparse ones. */
#include "cuda/account.h"
#include "cuda/allocation_table.h"
#include "cuda/charge.h"
#include "cuda/context_registry.h"
#include "cuda/discharge.h"
#include "cuda/mem.h"
#include "cuda/block.h"
#include "interposer.h"

/* How an element is stored: with all its channels in the format, or each channel by itself, or 4 x 4 elements together
 * in a compressed block. */
enum layout { WHOLE, CHANNELS, BLOCK };

/* By format, in half bytes, because the planes of 4:2:0 formats have half an element for each. */
static const struct element {
    uint8_t half_bytes, layout;
} elements[256] = {
    /* integers, half and float: 8, 16 and 32 bits */
    [0x01] = {2, CHANNELS},
    [0x08] = {2, CHANNELS},
    [0x02] = {4, CHANNELS},
    [0x09] = {4, CHANNELS},
    [0x10] = {4, CHANNELS},
    [0x03] = {8, CHANNELS},
    [0x0a] = {8, CHANNELS},
    [0x20] = {8, CHANNELS},
    /* normalised, 1, 2 and 4 channels of 8 and 16 bits; 10:10:10:2 */
    [0xc0] = {2, WHOLE},
    [0xc1] = {4, WHOLE},
    [0xc2] = {8, WHOLE},
    [0xc3] = {4, WHOLE},
    [0xc4] = {8, WHOLE},
    [0xc5] = {16, WHOLE},
    [0xc6] = {2, WHOLE},
    [0xc7] = {4, WHOLE},
    [0xc8] = {8, WHOLE},
    [0xc9] = {4, WHOLE},
    [0xca] = {8, WHOLE},
    [0xcb] = {16, WHOLE},
    [0x50] = {8, WHOLE},
    /* BC1 and BC4 have 8 bytes a block, the others 16 */
    [0x91] = {16, BLOCK},
    [0x92] = {16, BLOCK},
    [0x93] = {32, BLOCK},
    [0x94] = {32, BLOCK},
    [0x95] = {32, BLOCK},
    [0x96] = {32, BLOCK},
    [0x97] = {16, BLOCK},
    [0x98] = {16, BLOCK},
    [0x99] = {32, BLOCK},
    [0x9a] = {32, BLOCK},
    [0x9b] = {32, BLOCK},
    [0x9c] = {32, BLOCK},
    [0x9d] = {32, BLOCK},
    [0x9e] = {32, BLOCK},
    /* video, 4:2:0, then 4:2:2, then 4:4:4, each in 8 bits and in more */
    [0xb0] = {3, WHOLE},
    [0x53] = {3, WHOLE},
    [0x59] = {3, WHOLE},
    [0x9f] = {6, WHOLE},
    [0xa1] = {6, WHOLE},
    [0x54] = {6, WHOLE},
    [0x5a] = {6, WHOLE},
    [0xa2] = {4, WHOLE},
    [0xa5] = {4, WHOLE},
    [0x51] = {4, WHOLE},
    [0x55] = {4, WHOLE},
    [0x5b] = {4, WHOLE},
    [0xa3] = {8, WHOLE},
    [0xa4] = {8, WHOLE},
    [0xa6] = {8, WHOLE},
    [0xa7] = {8, WHOLE},
    [0x56] = {8, WHOLE},
    [0x5c] = {8, WHOLE},
    [0xb2] = {6, WHOLE},
    [0xb4] = {6, WHOLE},
    [0x52] = {6, WHOLE},
    [0x57] = {6, WHOLE},
    [0x5d] = {6, WHOLE},
    [0xa8] = {8, WHOLE},
    [0xa9] = {8, WHOLE},
    [0xb3] = {12, WHOLE},
    [0xb5] = {12, WHOLE},
    [0x58] = {12, WHOLE},
    [0x5e] = {12, WHOLE},
    [0xb1] = {16, WHOLE},
};

/* Of a format that came later: more than of any known. */
static struct element element_of(int format) {
    bool known = format >= 0 && format < 256 && elements[format].half_bytes;
    return known ? elements[format] : (struct element){32, CHANNELS};
}

static uint64_t times(uint64_t left, uint64_t right) {
    uint64_t product;
    return __builtin_mul_overflow(left, right, &product) ? UINT64_MAX : product;
}

/* Cards lay arrays out in tiles: 64 bytes by 8 rows, where there is more than one row. */
#define TILE_BYTES 64
#define TILE_ROWS 8

static uint64_t whole(uint64_t size, uint64_t unit) {
    return times(size / unit + (size % unit != 0), unit);
}

static uint64_t plane_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape, uint64_t width, uint64_t height, uint64_t depth) {
    struct element element = element_of(shape->format);
    if (element.layout == BLOCK) {
        width = width / 4 + (width % 4 != 0);
        height = height / 4 + (height % 4 != 0);
    }
    uint64_t channels = element.layout == CHANNELS && shape->channels ? shape->channels : 1;
    uint64_t row = whole(times(width, times(element.half_bytes, channels)), 2 * TILE_BYTES) / 2;
    return times(times(row, shape->height > 1 ? whole(height, TILE_ROWS) : height), depth);
}

static uint64_t level_of(uint64_t size, unsigned int level) {
    return level < 64 && size >> level ? size >> level : 1;
}

/* All levels; each halves what is not a layer. Levels beyond the last one that a shape can have are not made. */
static uint64_t shape_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels) {
    if (shape->flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED))
        return 0; /* memory comes later, mapped from VMM memory that is charged */
    bool layered = shape->flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
    uint64_t bytes = 0;
    for (unsigned int level = 0; level < levels && level < 64; level++) {
        uint64_t depth = layered && shape->depth ? shape->depth : level_of(shape->depth, level);
        uint64_t more = plane_bytes(shape, level_of(shape->width, level), level_of(shape->height, level), depth);
        if (__builtin_add_overflow(bytes, more, &bytes))
            return UINT64_MAX;
        if (shape->width >> level <= 1 && shape->height >> level <= 1 && (layered || shape->depth >> level <= 1))
            break;
    }
    return bytes;
}

static CUresult reserve(struct charge *charge, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels) {
    return charge_here(charge, shape && shape->width ? granules(shape_bytes(shape, levels)) : 0);
}

static CUresult finish(struct charge *charge, CUresult result, uint64_t handle) {
    if (result != CUDA_SUCCESS) {
        charge_undo(charge);
    } else if (charge_counts(charge) && handle) {
        context_keep(&(struct allocation){.key = handle,
                                          .bytes = charge->bytes,
                                          .owner = charge->where.owner,
                                          .card = (int8_t)charge->where.card,
                                          .kind = ALLOCATION_ARRAY},
                     charge->where.changes);
    }
    return result;
}

static uint64_t handle_of(CUarray *out, CUresult result) {
    return result == CUDA_SUCCESS && out ? (uint64_t)(uintptr_t)*out : 0;
}

CUresult hook_cuArrayCreate(CUarray *out, const CUDA_ARRAY_DESCRIPTOR_v1 *shape) {
    struct charge charge;
    CUDA_ARRAY3D_DESCRIPTOR whole = {0};
    if (shape)
        whole = (CUDA_ARRAY3D_DESCRIPTOR){
            .width = shape->width, .height = shape->height, .format = shape->format, .channels = shape->channels};
    CUresult result = reserve(&charge, &whole, 1);
    if (result != CUDA_SUCCESS)
        return result;
    result = real.cuArrayCreate(out, shape);
    return finish(&charge, result, handle_of(out, result));
}

CUresult hook_cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *shape) {
    struct charge charge;
    CUDA_ARRAY3D_DESCRIPTOR whole = {0};
    if (shape)
        whole = (CUDA_ARRAY3D_DESCRIPTOR){
            .width = shape->width, .height = shape->height, .format = shape->format, .channels = shape->channels};
    CUresult result = reserve(&charge, &whole, 1);
    if (result != CUDA_SUCCESS)
        return result;
    result = real.cuArrayCreate_v2(out, shape);
    return finish(&charge, result, handle_of(out, result));
}

CUresult hook_cuArray3DCreate(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR_v1 *shape) {
    struct charge charge;
    CUDA_ARRAY3D_DESCRIPTOR whole = {0};
    if (shape)
        whole = (CUDA_ARRAY3D_DESCRIPTOR){.width = shape->width,
                                          .height = shape->height,
                                          .depth = shape->depth,
                                          .format = shape->format,
                                          .channels = shape->channels,
                                          .flags = shape->flags};
    CUresult result = reserve(&charge, &whole, 1);
    if (result != CUDA_SUCCESS)
        return result;
    result = real.cuArray3DCreate(out, shape);
    return finish(&charge, result, handle_of(out, result));
}

CUresult hook_cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *shape) {
    struct charge charge;
    CUresult result = reserve(&charge, shape, 1);
    if (result != CUDA_SUCCESS)
        return result;
    result = real.cuArray3DCreate_v2(out, shape);
    return finish(&charge, result, handle_of(out, result));
}

CUresult hook_cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels) {
    struct charge charge;
    CUresult result = reserve(&charge, shape, levels);
    if (result != CUDA_SUCCESS)
        return result;
    result = real.cuMipmappedArrayCreate(out, shape, levels);
    return finish(&charge, result, result == CUDA_SUCCESS && out ? (uint64_t)(uintptr_t)*out : 0);
}

/* ---- the end of an array, and what was mapped into it ---------------------------------------------------------- */

static uint64_t pins; /* ever made: most processes map nothing into arrays */

static void unpin(const struct allocation *pin, void *unused) {
    (void)unused;
    block_release(pin->bytes);
}

static bool leave(uint64_t handle, struct allocation *item) {
    return handle && allocation_take(ALLOCATION_ARRAY, handle, item);
}

static CUresult left(bool known, const struct allocation *item, uint64_t handle, CUresult result) {
    if (known && result == CUDA_SUCCESS)
        allocation_discharge(item);
    else if (known)
        context_keep(item, CONTEXT_UNSEEN);
    if (result == CUDA_SUCCESS && __atomic_load_n(&pins, __ATOMIC_RELAXED))
        allocation_sweep(1u << ALLOCATION_PIN, handle, unpin, NULL);
    return result;
}

CUresult hook_cuArrayDestroy(CUarray array) {
    struct allocation item;
    bool known = leave((uint64_t)(uintptr_t)array, &item);
    CUresult result = real.cuArrayDestroy(array);
    return left(known, &item, (uint64_t)(uintptr_t)array, result);
}

CUresult hook_cuMipmappedArrayDestroy(CUmipmappedArray array) {
    struct allocation item;
    bool known = leave((uint64_t)(uintptr_t)array, &item);
    CUresult result = real.cuMipmappedArrayDestroy(array);
    return left(known, &item, (uint64_t)(uintptr_t)array, result);
}

static void pin(const CUarrayMapInfo *info) {
    uint64_t number = __atomic_add_fetch(&pins, 1, __ATOMIC_RELAXED);
    allocation_put_new(
        &(struct allocation){.key = number, .bytes = info->handle, .owner = info->resource, .kind = ALLOCATION_PIN});
}

/* A block mapped into an array lives at least as long as the mapping. An unmapping names a place and no block, so the
 * block is held for as long as the array exists: from before the driver is asked, or another thread could release it
 * in between; a mapping that fails holds it too, which errs to the safe side. */
static bool maps(const CUarrayMapInfo *info) {
    return info->operation == CU_MEM_OPERATION_TYPE_MAP && info->handle;
}

static CUresult pinned(CUresult (*map)(CUarrayMapInfo *, unsigned int, CUstream), CUarrayMapInfo *list,
                       unsigned int count, CUstream stream) {
    for (unsigned int i = 0; list && i < count; i++)
        if (maps(&list[i]) && block_hold(list[i].handle))
            pin(&list[i]);
    return map(list, count, stream);
}

CUresult hook_cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned int count, CUstream stream) {
    return pinned(real.cuMemMapArrayAsync, list, count, stream);
}

CUresult hook_cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned int count, CUstream stream) {
    return pinned(real.cuMemMapArrayAsync_ptsz, list, count, stream);
}
