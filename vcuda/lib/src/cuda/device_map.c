/* A device's number says nothing: CUDA_VISIBLE_DEVICES reorders, the pages know cards by UUID. */
#include "cuda/device_map.h"

#include <string.h>

#include "cuda/context.h"
#include "interposer.h"
#include "page.h"

#define DEVICES 64

struct known {
    bool ready;
    uint8_t uuid[16];
};

static struct known devices[DEVICES];
static uint64_t changes; /* raised around every end of a context */

/* Threads that race write the same bytes. */
static bool uuid_of(CUdevice device, uint8_t uuid[16]) {
    struct known *known = device >= 0 && device < DEVICES ? &devices[device] : NULL;
    if (known && __atomic_load_n(&known->ready, __ATOMIC_ACQUIRE)) {
        memcpy(uuid, known->uuid, sizeof known->uuid);
        return true;
    }
    CUuuid found;
    CUresult result =
        real_has(cuDeviceGetUuid_v2) ? real.cuDeviceGetUuid_v2(&found, device) : real.cuDeviceGetUuid(&found, device);
    if (result != CUDA_SUCCESS)
        return false;
    memcpy(uuid, found.bytes, sizeof found.bytes);
    if (known) {
        for (size_t i = 0; i < sizeof known->uuid; i++)
            __atomic_store_n(&known->uuid[i], found.bytes[i], __ATOMIC_RELAXED);
        __atomic_store_n(&known->ready, true, __ATOMIC_RELEASE);
    }
    return true;
}

int device_map_card(CUdevice device) {
    uint8_t uuid[16];
    int count = 0;
    if (uuid_of(device, uuid))
        return vcuda_card_of(uuid);
    real.cuDeviceGetCount(&count);
    return device >= 0 && device < count ? CARD_UNKNOWN : CARD_NONE;
}

uint64_t context_id_of(CUcontext context) {
    unsigned long long id = 0;
    if (!context)
        return 0;
    if (!real_has(cuCtxGetId))
        return (uint64_t)(uintptr_t)context;
    return real.cuCtxGetId(context, &id) == CUDA_SUCCESS ? id : 0;
}

void device_map_forget(void) {
    __atomic_fetch_add(&changes, 1, __ATOMIC_SEQ_CST);
}

bool device_map_current(struct mapped_context *where) {
    /* What this thread found last. A destroyed context's handle may be used again: hence the number of changes. */
    static __thread struct {
        CUcontext context;
        uint64_t changes;
        struct mapped_context where;
    } last __attribute__((tls_model("initial-exec")));
    CUcontext context = NULL;
    if (real.cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context)
        return false;
    uint64_t now = __atomic_load_n(&changes, __ATOMIC_SEQ_CST);
    if (last.context != context || last.changes != now) {
        struct mapped_context found;
        if (real.cuCtxGetDevice(&found.device) != CUDA_SUCCESS || !(found.owner = context_id_of(context)))
            return false;
        found.card = device_map_card(found.device);
        last.context = context;
        last.changes = now;
        last.where = found;
        context_found(context, &found);
    }
    *where = last.where;
    return true;
}

bool device_map_of_stream(CUstream stream, struct mapped_context *where) {
    CUcontext context = NULL, current = NULL, popped;
    if ((uintptr_t)stream <= 2 || real.cuStreamGetCtx(stream, &context) != CUDA_SUCCESS || !context)
        return device_map_current(where);
    real.cuCtxGetCurrent(&current);
    if (context == current)
        return device_map_current(where);
    if (real.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
        return false;
    bool found = device_map_current(where);
    real.cuCtxPopCurrent_v2(&popped);
    return found;
}

int device_map_card_at(CUmemLocation location) {
    struct mapped_context where;
    if (location.type >= CU_MEM_LOCATION_TYPE_HOST && location.type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT)
        return CARD_NONE;
    if (location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        return device_map_card(location.id);
    return device_map_current(&where) ? where.card : device_map_card(0);
}
