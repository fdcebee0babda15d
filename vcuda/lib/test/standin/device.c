/* The cards as CUDA devices: identity, size, attributes. */
#include <stdio.h>
#include <string.h>

#include "process.h"

#define NEED_DEVICE(name, ordinal)                                                                                     \
    struct device *name = device_of(ordinal);                                                                          \
    if (!name)                                                                                                         \
    return CUDA_ERROR_INVALID_DEVICE

CUresult model_cuDeviceGetCount(int *count) {
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = process.devices;
    return CUDA_SUCCESS;
}
CUresult model_cuDeviceGet(CUdevice *out, int ordinal) {
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    NEED_DEVICE(device, ordinal);
    *out = device->ordinal;
    return CUDA_SUCCESS;
}
CUresult model_cuDeviceGetName(char *name, int length, CUdevice ordinal) {
    NEED_DEVICE(device, ordinal);
    if (!name || length <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)length, "%s", device->hold.config->name);
    return CUDA_SUCCESS;
}
CUresult model_cuDeviceGetUuid(CUuuid *uuid, CUdevice ordinal) {
    NEED_DEVICE(device, ordinal);
    if (!uuid)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(uuid->bytes, device->hold.config->parent, sizeof uuid->bytes);
    return CUDA_SUCCESS;
}
CUresult model_cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice ordinal) {
    NEED_DEVICE(device, ordinal);
    if (!uuid)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(uuid->bytes, device->hold.config->uuid, sizeof uuid->bytes);
    return CUDA_SUCCESS;
}
CUresult model_cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal) {
    NEED_DEVICE(device, ordinal);
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    *bytes = (size_t)device->hold.card->total;
    return CUDA_SUCCESS;
}
CUresult model_cuDeviceTotalMem(unsigned int *bytes, CUdevice ordinal) {
    size_t whole;
    CUresult result = bytes ? model_cuDeviceTotalMem_v2(&whole, ordinal) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *bytes = whole > UINT32_MAX ? UINT32_MAX : (unsigned int)whole;
    return result;
}
CUresult model_cuDeviceComputeCapability(int *major, int *minor, CUdevice ordinal) {
    NEED_DEVICE(device, ordinal);
    *major = device->hold.config->major;
    *minor = device->hold.config->minor;
    return CUDA_SUCCESS;
}
CUresult model_cuDeviceGetPCIBusId(char *text, int length, CUdevice ordinal) {
    NEED_DEVICE(device, ordinal);
    if (!text || length < 13)
        return CUDA_ERROR_INVALID_VALUE;
    /* CUDA writes the domain with four digits, NVML with eight. */
    snprintf(text, (size_t)length, "%s", device->hold.config->pci_text + 4);
    return CUDA_SUCCESS;
}
CUresult model_cuDeviceGetByPCIBusId(CUdevice *out, const char *text) {
    unsigned int domain, bus;
    if (!out || !text || sscanf(text, "%x:%x", &domain, &bus) != 2)
        return CUDA_ERROR_INVALID_VALUE;
    for (int at = 0; at < process.devices; at++)
        if (process.device[at].hold.config->pci_bus == bus) {
            *out = at;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_DEVICE;
}
CUresult model_cuDeviceGetLuid(char *luid, unsigned int *mask, CUdevice ordinal) {
    NEED_DEVICE(device, ordinal);
    (void)device;
    (void)luid;
    (void)mask;
    return CUDA_ERROR_NOT_SUPPORTED; /* Windows only */
}
CUresult model_cuDeviceGetProperties(CUdevprop *out, CUdevice ordinal) {
    NEED_DEVICE(device, ordinal);
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (CUdevprop){1024,
                       {1024, 1024, 64},
                       {2147483647, 65535, 65535},
                       49152,
                       65536,
                       32,
                       2147483647,
                       65536,
                       device->hold.config->clock_khz,
                       512};
    return CUDA_SUCCESS;
}
CUresult model_cuDeviceCanAccessPeer(int *can, CUdevice ordinal, CUdevice peer) {
    NEED_DEVICE(device, ordinal);
    NEED_DEVICE(other, peer);
    *can = device != other;
    return CUDA_SUCCESS;
}
CUresult model_cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice ordinal, CUdevice peer) {
    NEED_DEVICE(device, ordinal);
    NEED_DEVICE(other, peer);
    if (device == other)
        return CUDA_ERROR_INVALID_DEVICE;
    *value = attribute == 1 ? 0 : 1; /* performance rank 0, then access, atomics, arrays */
    return CUDA_SUCCESS;
}
CUresult model_cuDeviceGetExecAffinitySupport(int *supported, int type, CUdevice ordinal) {
    NEED_DEVICE(device, ordinal);
    (void)device;
    (void)type;
    *supported = 0;
    return CUDA_SUCCESS;
}

/* Attribute number and value, for every card of the architectures in the catalogue. */
static const int common[][2] = {
    {1, 1024},   {2, 1024},     {3, 1024},    {4, 64},          {5, 2147483647}, {6, 65535},      {7, 65535},
    {8, 49152},  {9, 65536},    {10, 32},     {11, 2147483647}, {12, 65536},     {14, 512},       {15, 1},
    {19, 1},     {21, 131072},  {22, 131072}, {23, 65536},      {24, 16384},     {25, 16384},     {26, 16384},
    {27, 32768}, {28, 32768},   {29, 2048},   {30, 512},        {31, 1},         {40, 3},         {41, 1},
    {42, 32768}, {43, 2048},    {44, 1},      {45, 32768},      {46, 32768},     {47, 8192},      {48, 8192},
    {49, 32768}, {51, 32},      {52, 32768},  {53, 32768},      {54, 2046},      {55, 32768},     {56, 131072},
    {57, 65536}, {58, 16384},   {59, 16384},  {60, 16384},      {61, 32768},     {62, 2048},      {63, 32768},
    {64, 32768}, {65, 2048},    {66, 32768},  {67, 32768},      {68, 2046},      {69, 268435456}, {70, 131072},
    {71, 65000}, {72, 2097120}, {73, 32768},  {74, 32768},      {77, 32768},     {78, 1},         {79, 1},
    {80, 1},     {82, 65536},   {83, 1},      {85, 0},          {87, 2},         {89, 1},         {90, 1},
    {91, 1},     {92, 1},       {93, 1},      {94, 1},          {95, 1},         {98, 0},         {99, 1},
    {102, 1},    {103, 1},      {106, 32},    {111, 1024},      {113, 1},        {114, 1},        {119, 1},
    {121, 1},    {122, 1},      {123, 1},     {125, 1},         {126, 1},        {134, -1},
};

CUresult model_cuDeviceGetAttribute(int *value, int attribute, CUdevice ordinal) {
    NEED_DEVICE(device, ordinal);
    const struct card_config *card = device->hold.config;
    if (!value || attribute <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    *value = 0;
    switch (attribute) {
    case 13:
        *value = card->clock_khz;
        break;
    case 16:
        *value = card->sms;
        break;
    case 32:
        *value = 1;
        break; /* ECC */
    case 33:
        *value = (int)card->pci_bus;
        break;
    case 36:
        *value = card->memory_clock_khz;
        break;
    case 37:
        *value = card->bus_bits;
        break;
    case 38:
        *value = card->l2_bytes;
        break;
    case 39:
        *value = card->major == 8 && card->minor ? 1536 : card->major == 7 ? 1024 : 2048;
        break;
    case 75:
        *value = card->major;
        break;
    case 76:
        *value = card->minor;
        break;
    case 81:
        *value = card->major >= 9 ? 233472 : card->major == 7 ? 65536 : 167936;
        break;
    case 97:
        *value = card->major >= 9 ? 232448 : card->major == 7 ? 65536 : 166912;
        break;
    case 115:
        *value = config_read()->pools;
        break;
    case 120:
        *value = card->major >= 9;
        break;
    default:
        for (size_t at = 0; at < sizeof common / sizeof common[0]; at++)
            if (common[at][0] == attribute)
                *value = common[at][1];
    }
    return CUDA_SUCCESS;
}
