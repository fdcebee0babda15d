/* How cards are joined, and values by field number. */
#include <stdlib.h>
#include <string.h>

#include "nvml.h"

/* ---- topology: the words of `nvidia-smi topo -m` ------------------------------------------------------------------
 */

nvmlReturn_t model_nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t two, int *out) {
    static const struct {
        const char *word;
        int level;
    } levels[] = {{"X", 0}, {"PIX", 10}, {"PXB", 20}, {"PHB", 30}, {"NODE", 40}, {"SYS", 50}};
    nvmlReturn_t result = nvml_find(one);
    if (result == NVML_SUCCESS)
        result = nvml_find(two);
    if (result != NVML_SUCCESS || !out)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    const char *word = one->hold.config->link[two->index];
    *out = 40; /* cards joined by NVLink: the PCIe path between them runs through one node */
    for (size_t at = 0; at < sizeof levels / sizeof levels[0]; at++)
        if (strcmp(levels[at].word, word) == 0)
            *out = levels[at].level;
    return NVML_SUCCESS;
}

static int links_to(const struct card_config *card, int other) {
    return strncmp(card->link[other], "NV", 2) == 0 ? atoi(card->link[other] + 2) : 0;
}

/* Every link to more than one card at once: they meet in a switch. Else links are counted off, card by card. */
int nvlink_peer(const struct card_config *card, unsigned int link) {
    int sum = 0, most = 0, peers = 0;
    for (int other = 0; other < nvml_cards; other++) {
        int links = links_to(card, other);
        sum += links;
        most = links > most ? links : most;
        peers += links > 0;
    }
    int have = card->nvlinks > most ? card->nvlinks : most;
    if (peers > 1 && sum > have)
        return (int)link < most ? -1 : -2;
    for (int other = 0; other < nvml_cards; other++) {
        int links = links_to(card, other);
        if ((int)link < links)
            return other;
        link -= (unsigned int)links;
    }
    return -2;
}

nvmlReturn_t model_nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, int *out) {
    nvmlReturn_t result = nvml_find(device);
    if (result != NVML_SUCCESS || !out || link >= 18)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    if (nvlink_peer(device->hold.config, 0) == -2)
        return NVML_ERROR_NOT_SUPPORTED;
    *out = nvlink_peer(device->hold.config, link) != -2;
    return NVML_SUCCESS;
}
nvmlReturn_t model_nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link, unsigned int *out) {
    int active = 0;
    nvmlReturn_t result = model_nvmlDeviceGetNvLinkState(device, link, &active);
    if (result == NVML_SUCCESS && out)
        *out = device->hold.config->major >= 9 ? 4 : 3;
    return result;
}
/* 0: a card, 2: a switch. */
nvmlReturn_t model_nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link, int *out) {
    nvmlReturn_t result = nvml_find(device);
    if (result != NVML_SUCCESS || !out)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    int peer = nvlink_peer(device->hold.config, link);
    *out = peer == -1 ? 2 : 0;
    return peer == -2 ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}
nvmlReturn_t model_nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *out);
nvmlReturn_t model_nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *out) {
    nvmlReturn_t result = nvml_find(device);
    if (result != NVML_SUCCESS || !out)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    int peer = nvlink_peer(device->hold.config, link);
    if (peer == -2)
        return NVML_ERROR_NOT_SUPPORTED;
    if (peer >= 0)
        return model_nvmlDeviceGetPciInfo_v3(device + (peer - device->index), out);
    memset(out, 0, sizeof *out);
    out->bus = 7;
    strcpy(out->bus_id, "00000000:07:00.0");
    return NVML_SUCCESS;
}
nvmlReturn_t model_nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t two, int capability, int *out) {
    nvmlReturn_t result = nvml_find(one);
    if (result == NVML_SUCCESS)
        result = nvml_find(two);
    if (result != NVML_SUCCESS || !out)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    bool nvlink = links_to(one->hold.config, two->index) > 0;
    *out = capability == 2 && !nvlink ? 5 : 0; /* 2: over NVLink; 5: not supported */
    return NVML_SUCCESS;
}

/* ---- fields --------------------------------------------------------------------------------------------------------
 */

nvmlReturn_t model_nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out);
nvmlReturn_t model_nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *out);

enum { FIELD_NVLINK_COUNT = 91, FIELD_RECOVERY_ACTION = 230, FIELD_POWER_INSTANT = 186, VALUE_UINT = 1 };

static void fill(nvmlDevice_t device, nvmlFieldValue_t *field) {
    field->time_us = (long long)nvml_time_us(now_ns());
    field->latency_us = 0;
    field->type = VALUE_UINT;
    field->result = NVML_SUCCESS;
    switch (field->id) {
    case FIELD_NVLINK_COUNT:
        field->value.as_uint = 0;
        while (nvlink_peer(device->hold.config, field->value.as_uint) != -2)
            field->value.as_uint++;
        break;
    case FIELD_RECOVERY_ACTION:
        field->value.as_uint = 0;
        break;
    case FIELD_POWER_INSTANT:
        field->result = model_nvmlDeviceGetPowerUsage(device, &field->value.as_uint);
        break;
    default:
        field->result = NVML_ERROR_NOT_SUPPORTED;
    }
}
nvmlReturn_t model_nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *fields) {
    nvmlReturn_t result = nvml_find(device);
    if (result != NVML_SUCCESS || !fields || count <= 0)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    for (int at = 0; at < count; at++)
        fill(device, &fields[at]);
    return NVML_SUCCESS;
}
