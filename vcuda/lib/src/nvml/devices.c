/* Which cards there are: the container's. The runtime has usually hidden the others already, and then nothing is done;
 * where more are visible than were given (or the pages name none of those that are), this decides. */
#include "interposer.h"
#include "nvml/share.h"

/* The driver's number of the container's `wanted`th card, or the number of its cards if there is none such: *count. */
static bool find(const struct vcuda_limits_view *view, unsigned wanted, unsigned *count, nvmlDevice_t *found) {
    unsigned all = 0, ours = 0;
    nvmlDevice_t device;
    bool hit = false;
    if (real.nvmlDeviceGetCount_v2(&all) != NVML_SUCCESS)
        return false;
    for (unsigned index = 0; index < all; index++) {
        if (real.nvmlDeviceGetHandleByIndex_v2(index, &device) != NVML_SUCCESS || share_card_of(view, device) < 0)
            continue;
        if (ours == wanted) {
            *found = device;
            hit = true;
        }
        ours++;
    }
    *count = ours;
    return hit;
}

/* Is there anything to hide, and to show? A MIG instance is reached through a card that the pages do not have. */
static bool filtered(struct vcuda_limits_view *view, unsigned wanted, unsigned *count, nvmlDevice_t *found, bool *hit) {
    *count = 0;
    if (!share_cards(view))
        return false;
    *hit = find(view, wanted, count, found);
    return *count > 0;
}

static nvmlReturn_t count_of(nvmlReturn_t result, unsigned int *count) {
    struct vcuda_limits_view view;
    unsigned ours;
    nvmlDevice_t unused;
    bool hit;
    if (result == NVML_SUCCESS && count && filtered(&view, 0, &ours, &unused, &hit))
        *count = ours;
    return result;
}

nvmlReturn_t hook_nvmlDeviceGetCount(unsigned int *count) {
    return count_of(real.nvmlDeviceGetCount(count), count);
}

nvmlReturn_t hook_nvmlDeviceGetCount_v2(unsigned int *count) {
    return count_of(real.nvmlDeviceGetCount_v2(count), count);
}

static nvmlReturn_t by_index(nvmlReturn_t (*ask)(unsigned int, nvmlDevice_t *), unsigned int index, nvmlDevice_t *out) {
    struct vcuda_limits_view view;
    unsigned ours;
    nvmlDevice_t found = NULL;
    bool hit;
    if (!out || !filtered(&view, index, &ours, &found, &hit))
        return ask(index, out);
    if (!hit)
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = found;
    return NVML_SUCCESS;
}

nvmlReturn_t hook_nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *out) {
    return by_index(real.nvmlDeviceGetHandleByIndex, index, out);
}

nvmlReturn_t hook_nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *out) {
    return by_index(real.nvmlDeviceGetHandleByIndex_v2, index, out);
}

/* A handle found by name: another container's card is not found. */
static nvmlReturn_t judge(nvmlReturn_t result, nvmlDevice_t found, nvmlDevice_t *out) {
    struct vcuda_limits_view view;
    unsigned ours;
    nvmlDevice_t unused;
    bool hit;
    if (result != NVML_SUCCESS)
        return result;
    if (filtered(&view, 0, &ours, &unused, &hit) && share_card_of(&view, found) < 0)
        return NVML_ERROR_NOT_FOUND;
    if (out)
        *out = found;
    return NVML_SUCCESS;
}

#define BY_NAME(name, type)                                                                                            \
    nvmlReturn_t hook_##name(const type *key, nvmlDevice_t *out) {                                                     \
        nvmlDevice_t found = NULL;                                                                                     \
        nvmlReturn_t result = real.name(key, out ? &found : NULL);                                                     \
        return judge(result, found, out);                                                                              \
    }

BY_NAME(nvmlDeviceGetHandleByUUID, char)
BY_NAME(nvmlDeviceGetHandleByUUIDV, void)
BY_NAME(nvmlDeviceGetHandleBySerial, char)
BY_NAME(nvmlDeviceGetHandleByPciBusId, char)
BY_NAME(nvmlDeviceGetHandleByPciBusId_v2, char)

/* The number under which by_index() finds it. */
nvmlReturn_t hook_nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *out) {
    struct vcuda_limits_view view;
    unsigned ours;
    nvmlDevice_t found = NULL;
    bool hit;
    nvmlReturn_t result = real.nvmlDeviceGetIndex(device, out);
    if (result != NVML_SUCCESS || !out || !filtered(&view, 0, &ours, &found, &hit))
        return result;
    for (unsigned index = 0; index < ours; index++)
        if (find(&view, index, &ours, &found) && found == device)
            *out = index;
    return result;
}
