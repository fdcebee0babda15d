/* Who uses the card: the container's own processes, by the ids that they have in the container, with what the account
 * says they hold. The driver would show other tenants' processes on the host, and nothing in a container. */
#include <string.h>

#include "interposer.h"
#include "nvml/share.h"

struct list {
    void *to;
    unsigned room, count;
    unsigned gpu_instance, compute_instance; /* NVML_NO_INSTANCE of a whole card */
    void (*write)(const struct list *list, const struct share_process *process);
};

static void append(const struct share_process *process, void *argument) {
    struct list *list = argument;
    if (list->to && list->count < list->room)
        list->write(list, process);
    list->count++;
}

static void write_v1(const struct list *list, const struct share_process *process) {
    nvmlProcessInfo_v1_t *to = list->to;
    to[list->count] = (nvmlProcessInfo_v1_t){.pid = process->pid, .bytes = process->bytes};
}

static void write_v2(const struct list *list, const struct share_process *process) {
    nvmlProcessInfo_t *to = list->to;
    to[list->count] = (nvmlProcessInfo_t){.pid = process->pid,
                                          .bytes = process->bytes,
                                          .gpu_instance = list->gpu_instance,
                                          .compute_instance = list->compute_instance};
}

static void write_detail(const struct list *list, const struct share_process *process) {
    nvmlProcessDetail_v1_t *to = list->to;
    to[list->count] = (nvmlProcessDetail_v1_t){.pid = process->pid,
                                               .bytes = process->bytes,
                                               .gpu_instance = list->gpu_instance,
                                               .compute_instance = list->compute_instance};
}

typedef nvmlReturn_t asked_place(nvmlDevice_t device, unsigned int *out);

/* Of a whole card drivers refuse the question. */
static unsigned place(asked_place *ask, nvmlDevice_t device) {
    unsigned number;
    return ask(device, &number) == NVML_SUCCESS ? number : NVML_NO_INSTANCE;
}

/* The driver's rule: the count is always told, and an array that is too short gets nothing. */
static nvmlReturn_t fill(const struct share *share, struct list *list, unsigned *count) {
    struct list counted = *list;
    counted.to = NULL;
    share_each(share, append, &counted);
    *count = counted.count;
    if (!counted.count)
        return NVML_SUCCESS;
    if (counted.count > list->room || !list->to)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    share_each(share, append, list);
    *count = list->count < list->room ? list->count : list->room; /* one may have come or gone in between */
    return NVML_SUCCESS;
}

/* `asked` is the driver's answer to the same question without room for any process. */
static nvmlReturn_t show(nvmlDevice_t device, nvmlReturn_t asked, unsigned *count, struct list list, bool compute) {
    struct share share;
    if (asked != NVML_SUCCESS && asked != NVML_ERROR_INSUFFICIENT_SIZE)
        return asked;
    if (!share_open(&share, device)) { /* a card of which this container has no share: nobody to be seen */
        *count = 0;
        return NVML_SUCCESS;
    }
    list.room = *count;
    list.gpu_instance = place(real.nvmlDeviceGetGpuInstanceId, device);
    list.compute_instance = place(real.nvmlDeviceGetComputeInstanceId, device);
    nvmlReturn_t result = NVML_SUCCESS;
    if (compute)
        result = fill(&share, &list, count);
    else
        *count = 0;
    share_close(&share);
    return result;
}

#define LIST(name, type, writer, is_compute)                                                                           \
    nvmlReturn_t hook_##name(nvmlDevice_t device, unsigned int *count, type *list) {                                   \
        unsigned none = 0;                                                                                             \
        if (!count || !share_is_shown())                                                                               \
            return real.name(device, count, list);                                                                     \
        return show(device, real.name(device, &none, NULL), count, (struct list){.to = list, .write = writer},         \
                    is_compute);                                                                                       \
    }

LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, write_v1, true)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_t, write_v2, true)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, write_v2, true)
/* The account does not know who draws, nor who came through MPS: each process is listed once. */
LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, write_v1, false)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_t, write_v2, false)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t, write_v2, false)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, write_v1, false)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_t, write_v2, false)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t, write_v2, false)

nvmlReturn_t hook_nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *out) {
    if (!out || !share_is_shown())
        return real.nvmlDeviceGetRunningProcessDetailList(device, out);
    nvmlProcessDetailList_t none = {.version = out->version, .mode = out->mode};
    bool compute = out->mode == NVML_PROCESS_MODE_COMPUTE || out->mode == NVML_PROCESS_MODE_ALL;
    return show(device, real.nvmlDeviceGetRunningProcessDetailList(device, &none), &out->count,
                (struct list){.to = out->list, .write = write_detail}, compute);
}

/* ---- what the driver keeps of processes that were: by their ids on the host, other tenants' among them -------------
 */

#define NOBODY(name, type)                                                                                             \
    nvmlReturn_t hook_##name(nvmlDevice_t device, unsigned int *count, type *list) {                                   \
        unsigned none = 0;                                                                                             \
        if (!count || !share_is_shown())                                                                               \
            return real.name(device, count, list);                                                                     \
        nvmlReturn_t result = real.name(device, &none, NULL);                                                          \
        if (result != NVML_SUCCESS && result != NVML_ERROR_INSUFFICIENT_SIZE)                                          \
            return result;                                                                                             \
        *count = 0;                                                                                                    \
        return NVML_SUCCESS;                                                                                           \
    }

NOBODY(nvmlDeviceGetAccountingPids, unsigned int)
NOBODY(nvmlDeviceGetEncoderSessions, void)
NOBODY(nvmlDeviceGetFBCSessions, void)

nvmlReturn_t hook_nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid, void *out) {
    return share_is_shown() ? NVML_ERROR_NOT_FOUND : real.nvmlDeviceGetAccountingStats(device, pid, out);
}

nvmlReturn_t hook_nvmlDeviceGetAccountingStats_v2(nvmlDevice_t device, void *out) {
    return share_is_shown() ? NVML_ERROR_NOT_FOUND : real.nvmlDeviceGetAccountingStats_v2(device, out);
}
