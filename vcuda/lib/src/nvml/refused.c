/* What would change the card for every container on it is the node's to do: each of these is refused, whoever asks. The
 * arguments are not looked at. */
#include "interposer.h"

#define REFUSED(name)                                                                                                  \
    nvmlReturn_t hook_##name(void) {                                                                                   \
        return NVML_ERROR_NO_PERMISSION;                                                                               \
    }

REFUSED(nvmlDeviceSetAccountingMode)
REFUSED(nvmlDeviceClearAccountingPids)
REFUSED(nvmlDeviceSetAPIRestriction)
REFUSED(nvmlDeviceSetApplicationsClocks)
REFUSED(nvmlDeviceResetApplicationsClocks)
REFUSED(nvmlDeviceSetAutoBoostedClocksEnabled)
REFUSED(nvmlDeviceSetDefaultAutoBoostedClocksEnabled)
REFUSED(nvmlDeviceSetClockOffsets)
REFUSED(nvmlDeviceSetComputeMode)
REFUSED(nvmlDeviceSetConfComputeUnprotectedMemSize)
REFUSED(nvmlDeviceSetDramEncryptionMode)
REFUSED(nvmlDeviceSetDriverModel)
REFUSED(nvmlDeviceSetEccMode)
REFUSED(nvmlDeviceClearEccErrorCounts)
REFUSED(nvmlDeviceSetFanControlPolicy)
REFUSED(nvmlDeviceSetFanSpeed_v2)
REFUSED(nvmlDeviceSetDefaultFanSpeed_v2)
REFUSED(nvmlDeviceSetGpcClkVfOffset)
REFUSED(nvmlDeviceSetMemClkVfOffset)
REFUSED(nvmlDeviceSetGpuLockedClocks)
REFUSED(nvmlDeviceResetGpuLockedClocks)
REFUSED(nvmlDeviceSetMemoryLockedClocks)
REFUSED(nvmlDeviceResetMemoryLockedClocks)
REFUSED(nvmlDeviceSetGpuOperationMode)
REFUSED(nvmlDeviceSetMemoryLimits_v1)
REFUSED(nvmlDeviceSetMigMode)
REFUSED(nvmlDeviceCreateGpuInstance)
REFUSED(nvmlDeviceCreateGpuInstanceWithPlacement)
REFUSED(nvmlDeviceSetPersistenceMode)
REFUSED(nvmlDeviceSetPowerManagementLimit)
REFUSED(nvmlDeviceSetPowerManagementLimit_v2)
REFUSED(nvmlDeviceSetPowerMizerMode_v1)
REFUSED(nvmlDeviceSetTemperatureThreshold)
REFUSED(nvmlDeviceSetVirtualizationMode)
REFUSED(nvmlDeviceModifyDrainState)
REFUSED(nvmlDeviceRemoveGpu)
REFUSED(nvmlDeviceRemoveGpu_v2)
