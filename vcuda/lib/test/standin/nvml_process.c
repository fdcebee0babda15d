/* Who uses the card? Process lists in their three layouts, and their utilisation. */
#include <string.h>

#include "nvml.h"

enum { DETAIL_COMPUTE = 0 };

struct user {
    unsigned int pid, gi, ci; /* of a MIG instance, else all bits */
    const struct slot *slot;
};

/* What several processes hold is counted for each of them. */
static int64_t listed_bytes(const struct slot *slot) {
    return slot->used_bytes + slot->shared_bytes;
}

/* Processes that this one may see: whose slot is held and whose id is of this PID namespace. Looked at, locked. */
static unsigned int users(nvmlDevice_t device, struct user list[CARD_SLOTS]) {
    unsigned int count = 0;
    for (uint32_t index = 0; index < device->hold.card->highest; index++) {
        const struct slot *slot = &device->hold.card->slot[index];
        int pid = slot->live ? card_holder(&device->hold, index) : -1;
        if (pid > 0 && listed_bytes(slot) > 0)
            list[count++] = (struct user){(unsigned int)pid, nvml_divided(device) ? MIG_GI : ~0U,
                                          nvml_divided(device) ? MIG_CI : ~0U, slot};
    }
    return count;
}

/* `write` puts one entry; 16 bytes of the first layout, 24 of the others. */
static nvmlReturn_t list(nvmlDevice_t device, unsigned int *count, void *out,
                         void (*write)(void *, unsigned int, const struct user *)) {
    struct user found[CARD_SLOTS];
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = nvml_look(device);
    if (result != NVML_SUCCESS)
        return result;
    unsigned int have = users(device, found), room = *count;
    *count = have;
    if (have > room || (have && !out))
        result = NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int at = 0; result == NVML_SUCCESS && at < have; at++)
        write(out, at, &found[at]);
    nvml_done(device);
    return result;
}

static void write_short(void *out, unsigned int at, const struct user *user) {
    ((nvmlProcessInfo_v1_t *)out)[at] = (nvmlProcessInfo_v1_t){user->pid, (unsigned long long)listed_bytes(user->slot)};
}
static void write_long(void *out, unsigned int at, const struct user *user) {
    ((nvmlProcessInfo_t *)out)[at] =
        (nvmlProcessInfo_t){user->pid, (unsigned long long)listed_bytes(user->slot), user->gi, user->ci};
}

nvmlReturn_t model_nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                        nvmlProcessInfo_v1_t *out) {
    return list(device, count, out, write_short);
}
nvmlReturn_t model_nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                           nvmlProcessInfo_t *out) {
    return list(device, count, out, write_long);
}
ALIAS(nvmlDeviceGetComputeRunningProcesses_v3, nvmlDeviceGetComputeRunningProcesses_v2);

/* There is no graphics and no MPS on the modelled card. */
nvmlReturn_t model_nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned int *count, void *out) {
    (void)out;
    nvmlReturn_t result = count ? nvml_find(device) : NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *count = 0;
    return result;
}
ALIAS(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlDeviceGetGraphicsRunningProcesses);
ALIAS(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlDeviceGetGraphicsRunningProcesses);
ALIAS(nvmlDeviceGetMPSComputeRunningProcesses, nvmlDeviceGetGraphicsRunningProcesses);
ALIAS(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlDeviceGetGraphicsRunningProcesses);
ALIAS(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlDeviceGetGraphicsRunningProcesses);

static void write_detail(void *out, unsigned int at, const struct user *user) {
    ((nvmlProcessDetail_t *)out)[at] =
        (nvmlProcessDetail_t){user->pid, (unsigned long long)listed_bytes(user->slot), user->gi, user->ci, 0};
}
nvmlReturn_t model_nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *out) {
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (out->mode != DETAIL_COMPUTE) {
        out->count = 0;
        return nvml_find(device);
    }
    return list(device, &out->count, out->list, write_detail);
}

/* ---- accounting: of processes that live; what they leave is not modelled -------------------------------------------
 */

static void write_pid(void *out, unsigned int at, const struct user *user) {
    ((unsigned int *)out)[at] = user->pid;
}
nvmlReturn_t model_nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count, unsigned int *pids) {
    return list(device, count, pids, write_pid);
}
nvmlReturn_t model_nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid, nvmlAccountingStats_t *out) {
    struct user found[CARD_SLOTS];
    nvmlReturn_t result = out ? nvml_look(device) : NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return result;
    result = NVML_ERROR_NOT_FOUND;
    for (unsigned int at = 0, have = users(device, found); at < have; at++)
        if (found[at].pid == pid) {
            *out =
                (nvmlAccountingStats_t){.most_bytes = (unsigned long long)listed_bytes(found[at].slot), .running = 1};
            result = NVML_SUCCESS;
        }
    nvml_done(device);
    return result;
}

/* ---- utilisation ---------------------------------------------------------------------------------------------------
 */

/* The newest whole sampling period since then in which the process ran; 0: there is none. */
static int64_t newest(const struct slot *slot, int64_t since_ns, int64_t now) {
    int64_t last = now / BUCKET_NS - 1, first = last - CARD_BUCKETS + 2;
    for (int64_t epoch = last; epoch >= first && (epoch + 1) * BUCKET_NS > since_ns; epoch--)
        if (card_busy_permille(slot->bucket, epoch) > 0)
            return epoch;
    return 0;
}

/* Looked at and locked, where NVML has times of it. */
static nvmlReturn_t look_at_times(nvmlDevice_t device) {
    nvmlReturn_t result = nvml_find(device);
    if (result == NVML_SUCCESS && nvml_divided(device))
        return NVML_ERROR_NOT_SUPPORTED;
    return result == NVML_SUCCESS ? nvml_look(device) : result;
}

struct load {
    unsigned int pid, percent;
    unsigned long long time_us;
};

static unsigned int loads(nvmlDevice_t device, unsigned long long since_us, struct load out[CARD_SLOTS]) {
    struct user found[CARD_SLOTS];
    unsigned int have = users(device, found), count = 0;
    int64_t now = now_ns(), since = nvml_monotonic_ns(since_us);
    for (unsigned int at = 0; at < have; at++) {
        int64_t epoch = newest(found[at].slot, since, now);
        if (epoch)
            out[count++] =
                (struct load){found[at].pid, (unsigned int)card_busy_permille(found[at].slot->bucket, epoch) / 10,
                              nvml_time_us((epoch + 1) * BUCKET_NS)};
    }
    return count;
}

nvmlReturn_t model_nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *out,
                                                   unsigned int *count, unsigned long long since_us) {
    struct load found[CARD_SLOTS];
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = look_at_times(device);
    if (result != NVML_SUCCESS)
        return result;
    unsigned int have = loads(device, since_us, found), room = *count;
    nvml_done(device);
    if (!out || room < have) {
        *count = have ? have : 1;
        return have || !out ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_ERROR_NOT_FOUND;
    }
    *count = have;
    for (unsigned int at = 0; at < have; at++)
        out[at] = (nvmlProcessUtilizationSample_t){
            found[at].pid, found[at].time_us, found[at].percent, found[at].percent / 2, 0, 0};
    return have ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t model_nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *out) {
    struct load found[CARD_SLOTS];
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = look_at_times(device);
    if (result != NVML_SUCCESS)
        return result;
    unsigned int have = loads(device, out->since_us, found), room = out->count;
    nvml_done(device);
    out->count = have;
    if (have > room || (have && !out->list))
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int at = 0; at < have; at++)
        out->list[at] = (nvmlProcessUtilizationInfo_t){
            found[at].time_us, found[at].pid, found[at].percent, found[at].percent / 2, 0, 0, 0, 0};
    return have ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

/* Samples of the whole card, oldest first. Types: 1 the SMs, 2 memory. */
nvmlReturn_t model_nvmlDeviceGetSamples(nvmlDevice_t device, int type, unsigned long long since_us, int *value_type,
                                        unsigned int *count, nvmlSample_t *out) {
    if (!count || !value_type || (type != 1 && type != 2))
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = look_at_times(device);
    if (result != NVML_SUCCESS)
        return result;
    int64_t last = now_ns() / BUCKET_NS - 1, first = last - CARD_BUCKETS + 2, since = nvml_monotonic_ns(since_us);
    unsigned int have = 0;
    *value_type = 1; /* unsigned int */
    for (int64_t epoch = first; epoch <= last; epoch++) {
        if ((epoch + 1) * BUCKET_NS <= since)
            continue;
        unsigned int percent = (unsigned int)card_busy_permille(device->hold.card->bucket, epoch) / 10;
        if (out && have < *count)
            out[have] =
                (nvmlSample_t){nvml_time_us((epoch + 1) * BUCKET_NS), {.as_uint = type == 1 ? percent : percent / 2}};
        have++;
    }
    nvml_done(device);
    *count = out && *count < have ? *count : have;
    return have ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
