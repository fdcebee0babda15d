/* How busy the card is: the container's own work, in percent of the GPU time that it may use. A process that uses its
 * whole share sees 100, as it would on a card of that size. */
#include <string.h>
#include <time.h>

#include "interposer.h"
#include "nvml/share.h"
#include "token_bucket.h"

#define SECOND UINT64_C(1000000000)

static uint64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec;
}

/* NVML's time stamps: microseconds since 1970. */
static uint64_t wall_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* `busy` ns of GPU time in `elapsed`, in percent of the share. */
static unsigned percent(const struct share *share, uint64_t busy, uint64_t elapsed) {
    double limit = 100.0;
    if (share->limits.mode & VCUDA_MODE_CORES_LIMITED)
        limit = share->limits.core_limit_q8 / 256.0;
    if (!elapsed || limit <= 0)
        return 0;
    double value = 100.0 * 100.0 * (double)busy / ((double)elapsed * limit);
    return value > 100 ? 100 : (unsigned)(value + 0.5);
}

static unsigned of_window(const struct share *share, uint64_t now) {
    uint64_t start = share->usage.window_start_ns;
    if (!start || start >= now || now - start >= BUCKET_WINDOW_MOST_NS)
        return 0;
    return percent(share, share->usage.window_busy_ns, now - start);
}

/* Since this process last asked, if that tells something; else in the window that the library keeps. */
unsigned share_busy(const struct share *share) {
    static struct {
        uint64_t busy, time;
    } last[VCUDA_MAX_CARDS];
    uint64_t now = monotonic_ns(), busy = share->usage.busy_ns;
    uint64_t before = __atomic_load_n(&last[share->card].time, __ATOMIC_RELAXED);
    uint64_t then = __atomic_load_n(&last[share->card].busy, __ATOMIC_RELAXED);
    if (now - before < SECOND / 6) /* the driver's own sampling period */
        return of_window(share, now);
    __atomic_store_n(&last[share->card].busy, busy, __ATOMIC_RELAXED);
    __atomic_store_n(&last[share->card].time, now, __ATOMIC_RELAXED);
    return before && now - before < 2 * SECOND && busy >= then ? percent(share, busy - then, now - before)
                                                               : of_window(share, now);
}

nvmlReturn_t hook_nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out) {
    struct share share;
    nvmlReturn_t result = real.nvmlDeviceGetUtilizationRates(device, out);
    if (result != NVML_SUCCESS || !out || !share_open(&share, device))
        return result;
    out->gpu = share_busy(&share);
    if (out->memory > out->gpu) /* time with memory traffic is time with work; the rest is others' */
        out->memory = out->gpu;
    share_close(&share);
    return result;
}

/* ---- by process: the card's time is kept for the container, and shared out among those with work in flight
 * ------------ */

struct sharing {
    unsigned processes, busy;
};

static void count_process(const struct share_process *process, void *argument) {
    struct sharing *sharing = argument;
    sharing->processes++;
    sharing->busy += process->busy;
}

struct writing {
    struct sharing sharing;
    unsigned percent, room, count;
    uint64_t now;
    nvmlProcessUtilizationSample_t *samples;
    nvmlProcessUtilizationInfo_v1_t *infos;
};

static void write_process(const struct share_process *process, void *argument) {
    struct writing *writing = argument;
    unsigned at = writing->count++;
    unsigned part = process->busy ? writing->percent / writing->sharing.busy : 0;
    if (at >= writing->room)
        return;
    if (writing->samples)
        writing->samples[at] =
            (nvmlProcessUtilizationSample_t){.pid = process->pid, .time_us = writing->now, .sm = part};
    else
        writing->infos[at] =
            (nvmlProcessUtilizationInfo_v1_t){.time_us = writing->now, .pid = process->pid, .sm = part};
}

static nvmlReturn_t by_process(struct share *share, struct writing *writing, unsigned *count) {
    share_each(share, count_process, &writing->sharing);
    writing->room = *count;
    *count = writing->sharing.processes;
    if (!writing->sharing.processes)
        return NVML_ERROR_NOT_FOUND; /* as the driver says when nobody used the card */
    if (writing->room < writing->sharing.processes || (!writing->samples && !writing->infos))
        return NVML_ERROR_INSUFFICIENT_SIZE;
    writing->percent = share_busy(share);
    writing->now = wall_us();
    share_each(share, write_process, writing);
    *count = writing->count < writing->room ? writing->count : writing->room;
    return NVML_SUCCESS;
}

/* Did the driver answer as it does, apart from how many processes there are? */
static bool answered(nvmlReturn_t result) {
    return result == NVML_SUCCESS || result == NVML_ERROR_INSUFFICIENT_SIZE || result == NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t hook_nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *list,
                                                  unsigned int *count, unsigned long long last_seen_us) {
    struct share share;
    unsigned none = 0;
    if (!count || !share_open(&share, device))
        return real.nvmlDeviceGetProcessUtilization(device, list, count, last_seen_us);
    nvmlReturn_t result = real.nvmlDeviceGetProcessUtilization(device, NULL, &none, last_seen_us);
    if (answered(result))
        result = by_process(&share, &(struct writing){.samples = list}, count);
    share_close(&share);
    return result;
}

nvmlReturn_t hook_nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *out) {
    struct share share;
    if (!out || !share_open(&share, device))
        return real.nvmlDeviceGetProcessesUtilizationInfo(device, out);
    nvmlProcessesUtilizationInfo_t none = {.version = out->version, .last_seen_us = out->last_seen_us};
    nvmlReturn_t result = real.nvmlDeviceGetProcessesUtilizationInfo(device, &none);
    if (answered(result))
        result = by_process(&share, &(struct writing){.infos = out->list}, &out->count);
    share_close(&share);
    return result;
}

/* ---- samples: one, of now -------------------------------------------------------------------------------------------
 */

nvmlReturn_t hook_nvmlDeviceGetSamples(nvmlDevice_t device, int type, unsigned long long last_seen_us, int *value_type,
                                       unsigned int *count, nvmlSample_t *list) {
    struct share share;
    unsigned room = count ? *count : 0;
    nvmlReturn_t result = real.nvmlDeviceGetSamples(device, type, last_seen_us, value_type, count, list);
    if ((type != NVML_GPU_UTILIZATION_SAMPLES && type != NVML_MEMORY_UTILIZATION_SAMPLES) || !answered(result) ||
        !count || !value_type || !share_open(&share, device))
        return result;
    *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
    *count = 1;
    result = list && !room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
    if (list && room)
        list[0] = (nvmlSample_t){.time_us = wall_us(), .value = share_busy(&share)};
    share_close(&share);
    return result;
}

/* ---- GPM counts the card's work as a whole; there is no share of it to show
 * ------------------------------------------- */

/* Whoever only looks at cards is shown them as they are. */
static bool shows_cards(void) {
    struct vcuda_limits_view view;
    return share_cards(&view) && share_only_looks(&view);
}

nvmlReturn_t hook_nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *out) {
    nvmlReturn_t result = real.nvmlGpmQueryDeviceSupport(device, out);
    if (result == NVML_SUCCESS && out && !shows_cards())
        out->supported = 0;
    return result;
}

nvmlReturn_t hook_nvmlGpmSampleGet(nvmlDevice_t device, void *sample) {
    return shows_cards() ? real.nvmlGpmSampleGet(device, sample) : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t hook_nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int instance, void *sample) {
    return shows_cards() ? real.nvmlGpmMigSampleGet(device, instance, sample) : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t hook_nvmlGpmMetricsGet(void *metrics) {
    return shows_cards() ? real.nvmlGpmMetricsGet(metrics) : NVML_ERROR_NOT_SUPPORTED;
}
