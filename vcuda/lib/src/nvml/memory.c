/* Memory of the card: the share, of which free is what is not used, so that the three numbers always add up. */
#include "interposer.h"
#include "nvml/share.h"

struct memory {
    uint64_t total, used;
};

/* The card's real size → the share's; false if this card has no memory limit. */
static bool share_of(nvmlDevice_t device, uint64_t real_total, struct memory *memory) {
    struct share share;
    if (!share_open(&share, device))
        return false;
    bool limited = share.limits.mode & VCUDA_MODE_MEMORY_LIMITED;
    memory->total = share.limits.memory_limit < real_total ? share.limits.memory_limit : real_total;
    memory->used = limited ? share_used(&share) : 0;
    if (memory->used > memory->total)
        memory->used = memory->total;
    share_close(&share);
    return limited;
}

nvmlReturn_t hook_nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out) {
    struct memory memory;
    nvmlReturn_t result = real.nvmlDeviceGetMemoryInfo(device, out);
    if (result == NVML_SUCCESS && out && share_of(device, out->total, &memory))
        *out = (nvmlMemory_t){.total = memory.total, .used = memory.used, .free = memory.total - memory.used};
    return result;
}

/* What the driver keeps for itself is nobody's share. */
nvmlReturn_t hook_nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out) {
    struct memory memory;
    nvmlReturn_t result = real.nvmlDeviceGetMemoryInfo_v2(device, out);
    if (result == NVML_SUCCESS && out && share_of(device, out->total, &memory)) {
        out->total = memory.total;
        out->reserved = 0;
        out->used = memory.used;
        out->free = memory.total - memory.used;
    }
    return result;
}
