/* Memory of another interface of this process (Vulkan, OpenGL): taken from the card when it is imported, for the model
 * has no such interface; a buffer of it is a pointer to its pages, and is freed by itself. */
#include <stdlib.h>
#include <sys/mman.h>

#include "process.h"

struct external {
    struct device *device;
    int64_t bytes;
    char *pages;
};

CUresult model_cuImportExternalMemory(CUexternalMemory *out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *handle) {
    NEED_CONTEXT(context);
    if (!out || !handle || !handle->type || !handle->size)
        return CUDA_ERROR_INVALID_VALUE;
    struct external made = {.device = context->device, .bytes = granules((int64_t)handle->size)};
    struct external *external = malloc(sizeof *external);
    if (!external || !device_charge(made.device, made.bytes)) {
        free(external);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made.pages = map_pages((size_t)made.bytes);
    if (!made.pages) {
        device_charge(made.device, -made.bytes);
        free(external);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *external = made;
    *out = external;
    return CUDA_SUCCESS;
}

CUresult model_cuExternalMemoryGetMappedBuffer(CUdeviceptr *out, CUexternalMemory external,
                                               const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *buffer) {
    NEED_CONTEXT(context);
    if (!out || !external || !buffer || !buffer->size || buffer->offset + buffer->size > (uint64_t)external->bytes)
        return CUDA_ERROR_INVALID_VALUE;
    process_lock();
    uintptr_t at = (uintptr_t)external->pages + buffer->offset;
    struct memory *made = map_add((struct memory){.base = at,
                                                  .bytes = buffer->size,
                                                  .backed = buffer->size,
                                                  .kind = IMPORTED,
                                                  .device = external->device,
                                                  .context = context});
    process_unlock();
    *out = made ? at : 0;
    return made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult model_cuDestroyExternalMemory(CUexternalMemory external) {
    if (!external)
        return CUDA_ERROR_INVALID_HANDLE;
    device_charge(external->device, -external->bytes);
    munmap(external->pages, (size_t)external->bytes);
    free(external);
    return CUDA_SUCCESS;
}
