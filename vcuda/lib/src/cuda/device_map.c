/* A device's number says nothing: CUDA_VISIBLE_DEVICES reorders, the pages know cards by UUID. */
#include "cuda/device_map.h"

#include <string.h>

#include "attachment.h"
#include "interposer.h"

#define DEVICES 64

struct known {
    bool ready;
    uint8_t uuid[16];
};

static struct known devices[DEVICES];

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
