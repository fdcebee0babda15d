/* Arrays and mipmapped arrays: what they take of the card. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "process.h"

struct array {
    struct array *next;
    struct context *context;
    CUDA_ARRAY3D_DESCRIPTOR shape;
    int64_t bytes, charged;
    char *data;
    struct mipmap *level_of;
};

struct mipmap {
    struct mipmap *next;
    struct context *context;
    unsigned int levels;
    int64_t bytes, charged;
    struct array *level;
};

static struct array *arrays;
static struct mipmap *mipmaps;

/* Bytes of one element of one channel; block-compressed formats: of one 4x4 block, negative. 0: unknown. */
static int element_bytes(int format) {
    switch (format) {
    case 0x01:
    case 0x08:
    case 0xc0:
    case 0xc6:
        return 1;
    case 0x02:
    case 0x09:
    case 0x10:
    case 0xc1:
    case 0xc3:
    case 0xc7:
    case 0xc9:
        return 2;
    case 0x03:
    case 0x0a:
    case 0x20:
    case 0xc2:
    case 0xc4:
    case 0xc8:
    case 0xca:
    case 0x50:
        return 4;
    case 0xc5:
    case 0xcb:
        return 8;
    case 0x91:
    case 0x92:
    case 0x97:
    case 0x98:
        return -8;
    case 0x93:
    case 0x94:
    case 0x95:
    case 0x96:
    case 0x99:
    case 0x9a:
    case 0x9b:
    case 0x9c:
    case 0x9d:
    case 0x9e:
        return -16;
    default:
        return 0;
    }
}

static bool carries_channels(int format) {
    return format <= 0x20;
}

static int64_t row_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape) {
    int64_t element = element_bytes(shape->format);
    if (element < 0)
        return (int64_t)(shape->width + 3) / 4 * -element;
    return (int64_t)shape->width * element * (carries_channels(shape->format) ? shape->channels : 1);
}

static int64_t shape_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape) {
    int64_t rows = shape->height ? (int64_t)shape->height : 1, layers = shape->depth ? (int64_t)shape->depth : 1;
    if (element_bytes(shape->format) < 0)
        rows = (rows + 3) / 4;
    int64_t plane, all;
    if (__builtin_mul_overflow(row_bytes(shape), rows, &plane) || __builtin_mul_overflow(plane, layers, &all))
        return -1;
    return all;
}

/* What the card needs for it, as it lays rows out in tiles of 64 bytes by 8: narrow and low shapes cost a multiple of
 * their elements. `high`: it, or what it is a level of, has more than one row. */
static int64_t tiled_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape, bool high) {
    int64_t rows = shape->height ? (int64_t)shape->height : 1, layers = shape->depth ? (int64_t)shape->depth : 1;
    if (element_bytes(shape->format) < 0)
        rows = (rows + 3) / 4;
    if (high)
        rows = (rows + 7) / 8 * 8;
    return (row_bytes(shape) + 63) / 64 * 64 * rows * layers;
}

static CUresult check(const CUDA_ARRAY3D_DESCRIPTOR *shape) {
    if (!shape || !shape->width || shape->width > 131072 || shape->height > 65536 || shape->depth > 16384)
        return CUDA_ERROR_INVALID_VALUE;
    if (carries_channels(shape->format) && shape->channels != 1 && shape->channels != 2 && shape->channels != 4)
        return CUDA_ERROR_INVALID_VALUE;
    return element_bytes(shape->format) ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

static bool deferred(const CUDA_ARRAY3D_DESCRIPTOR *shape) {
    return shape->flags & (ARRAY_SPARSE | ARRAY_DEFERRED);
}

/* Sparse and deferred arrays take nothing until memory is mapped into them. */
static CUresult create(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *shape) {
    NEED_CONTEXT(context);
    CUresult result = check(shape);
    if (result != CUDA_SUCCESS)
        return result;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    int64_t bytes = shape_bytes(shape), charge = deferred(shape) ? 0 : granules(tiled_bytes(shape, shape->height > 1));
    struct array *array = calloc(1, sizeof *array);
    if (!context_lock(context)) {
        free(array);
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    if (array && bytes > 0 && device_charge(context->device, charge)) {
        *array = (struct array){.next = arrays,
                                .context = context,
                                .shape = *shape,
                                .bytes = bytes,
                                .charged = charge,
                                .data = charge ? map_pages((size_t)bytes) : NULL};
        arrays = array;
        *out = array;
    } else {
        result = CUDA_ERROR_OUT_OF_MEMORY;
        free(array);
    }
    process_unlock();
    return result;
}

static void destroy(struct array *array) {
    for (struct array **at = &arrays; *at; at = &(*at)->next)
        if (*at == array) {
            *at = array->next;
            break;
        }
    device_charge(array->context->device, -array->charged);
    if (array->data)
        munmap(array->data, (size_t)array->bytes);
    free(array);
}

static void destroy_mipmap(struct mipmap *mipmap) {
    for (struct mipmap **at = &mipmaps; *at; at = &(*at)->next)
        if (*at == mipmap) {
            *at = mipmap->next;
            break;
        }
    device_charge(mipmap->context->device, -mipmap->charged);
    for (unsigned int level = 0; level < mipmap->levels; level++)
        if (mipmap->level[level].data)
            munmap(mipmap->level[level].data, (size_t)mipmap->level[level].bytes);
    free(mipmap->level);
    free(mipmap);
}

void arrays_free(struct context *context) {
    for (struct array *at = arrays, *next; at; at = next) {
        next = at->next;
        if (at->context == context)
            destroy(at);
    }
    for (struct mipmap *at = mipmaps, *next; at; at = next) {
        next = at->next;
        if (at->context == context)
            destroy_mipmap(at);
    }
}

char *array_row(CUarray array, size_t x, size_t y, size_t z, size_t *left) {
    size_t row = (size_t)row_bytes(&array->shape), rows = array->shape.height ? array->shape.height : 1;
    size_t at = (z * rows + y) * row + x;
    *left = array->data && at < (size_t)array->bytes ? (size_t)array->bytes - at : 0;
    return array->data ? array->data + at : NULL;
}

CUresult model_cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *shape) {
    return create(out, shape);
}
CUresult model_cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *shape) {
    if (!shape)
        return CUDA_ERROR_INVALID_VALUE;
    return create(
        out, &(CUDA_ARRAY3D_DESCRIPTOR){
                 .width = shape->width, .height = shape->height, .format = shape->format, .channels = shape->channels});
}
CUresult model_cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *out, CUarray array) {
    if (!out || !array)
        return CUDA_ERROR_INVALID_VALUE;
    *out = array->shape;
    return CUDA_SUCCESS;
}
CUresult model_cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *out, CUarray array) {
    if (!out || !array)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (CUDA_ARRAY_DESCRIPTOR){array->shape.width, array->shape.height, array->shape.format, array->shape.channels};
    return CUDA_SUCCESS;
}
CUresult model_cuArrayDestroy(CUarray array) {
    if (!array || array->level_of)
        return CUDA_ERROR_INVALID_HANDLE;
    process_lock();
    destroy(array);
    process_unlock();
    return CUDA_SUCCESS;
}

static int64_t fill_levels(struct mipmap *mipmap, const CUDA_ARRAY3D_DESCRIPTOR *shape, struct context *context,
                           int64_t *tiled) {
    int64_t all = 0;
    for (unsigned int level = 0; level < mipmap->levels; level++) {
        CUDA_ARRAY3D_DESCRIPTOR smaller = *shape;
        smaller.width = shape->width >> level ? shape->width >> level : 1;
        smaller.height = shape->height ? (shape->height >> level ? shape->height >> level : 1) : 0;
        if (!(shape->flags & (ARRAY_LAYERED | ARRAY_CUBEMAP)))
            smaller.depth = shape->depth ? (shape->depth >> level ? shape->depth >> level : 1) : 0;
        mipmap->level[level] =
            (struct array){.context = context, .shape = smaller, .bytes = shape_bytes(&smaller), .level_of = mipmap};
        all += mipmap->level[level].bytes;
        *tiled += tiled_bytes(&smaller, shape->height > 1);
    }
    return all;
}

CUresult model_cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *shape,
                                      unsigned int levels) {
    NEED_CONTEXT(context);
    CUresult result = check(shape);
    if (result != CUDA_SUCCESS)
        return result;
    size_t widest = shape->width > shape->height ? shape->width : shape->height;
    unsigned int most = 64U - (unsigned int)__builtin_clzll(widest > shape->depth ? widest : shape->depth);
    if (!out || !levels)
        return CUDA_ERROR_INVALID_VALUE;
    struct mipmap *mipmap = calloc(1, sizeof *mipmap);
    if (!mipmap)
        return CUDA_ERROR_OUT_OF_MEMORY;
    mipmap->context = context;
    mipmap->levels = levels < most ? levels : most;
    mipmap->level = calloc(mipmap->levels, sizeof *mipmap->level);
    int64_t tiled = 0;
    mipmap->bytes = mipmap->level ? fill_levels(mipmap, shape, context, &tiled) : -1;
    mipmap->charged = deferred(shape) ? 0 : granules(tiled);
    if (!context_lock(context)) {
        free(mipmap->level);
        free(mipmap);
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    if (mipmap->bytes > 0 && device_charge(context->device, mipmap->charged)) {
        for (unsigned int level = 0; mipmap->charged && level < mipmap->levels; level++)
            mipmap->level[level].data = map_pages((size_t)mipmap->level[level].bytes);
        mipmap->next = mipmaps;
        mipmaps = mipmap;
        *out = mipmap;
    } else {
        free(mipmap->level);
        free(mipmap);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    process_unlock();
    return result;
}
CUresult model_cuMipmappedArrayGetLevel(CUarray *out, CUmipmappedArray mipmap, unsigned int level) {
    if (!out || !mipmap || level >= mipmap->levels)
        return CUDA_ERROR_INVALID_VALUE;
    *out = &mipmap->level[level];
    return CUDA_SUCCESS;
}
CUresult model_cuMipmappedArrayDestroy(CUmipmappedArray mipmap) {
    if (!mipmap)
        return CUDA_ERROR_INVALID_HANDLE;
    process_lock();
    destroy_mipmap(mipmap);
    process_unlock();
    return CUDA_SUCCESS;
}

/* Asked of deferred arrays, to know how much to map; the driver refuses it for others. */
static CUresult requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, int64_t bytes, bool asked_rightly) {
    if (!out || !asked_rightly)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = (size_t)granules(bytes), .alignment = 65536};
    return CUDA_SUCCESS;
}
CUresult model_cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUarray array, CUdevice device) {
    (void)device;
    return requirements(out, array ? array->bytes : 0, array && (array->shape.flags & ARRAY_DEFERRED));
}
CUresult model_cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUmipmappedArray mipmap,
                                                     CUdevice device) {
    (void)device;
    return requirements(out, mipmap ? mipmap->bytes : 0, mipmap && (mipmap->level[0].shape.flags & ARRAY_DEFERRED));
}
