#define _GNU_SOURCE
#include "nvml/share.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "interposer.h"
#include "limits.h"
#include "paths.h"
#include "slots.h"

#define BATCH 32 /* slots a read */

/* All of `size` bytes at `offset`, or nothing. */
static bool read_at(int fd, void *to, size_t size, off_t offset) {
    return pread(fd, to, size, offset) == (ssize_t)size;
}

bool share_cards(struct vcuda_limits_view *view) {
    _Alignas(8) struct vcuda_limits page;
    char path[PATHS_MAX];
    int saved = errno;
    int fd = paths_limits(path) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    const char *fault = "";
    for (int tries = 0; fd >= 0 && fault && tries < 3; tries++) /* one copy may be being written */
        if (read_at(fd, &page, sizeof page, 0))
            fault = limits_read(&page, view);
    if (fd >= 0)
        close(fd);
    errno = saved;
    return !fault;
}

bool share_only_looks(const struct vcuda_limits_view *view) {
    for (uint32_t i = 0; i < view->card_count; i++)
        if (!(view->card[i].mode & VCUDA_MODE_MEMORY_LIMITED) || view->card[i].memory_limit)
            return false;
    return view->card_count > 0;
}

bool share_is_shown(void) {
    struct vcuda_limits_view view;
    return share_cards(&view) && !share_only_looks(&view);
}

static int digit(char letter) {
    if (letter >= '0' && letter <= '9')
        return letter - '0';
    letter |= 0x20;
    return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

/* A card or MIG instance as NVML names it; the fields are those of vcuda_card_limits. */
struct name {
    uint8_t uuid[16];
    uint32_t instance;
};

/* "/7/0" → the GPU instance and the compute instance; false: there is no such end. */
static bool parse_place(const char *text, uint32_t *instance) {
    unsigned gpu_instance, compute_instance;
    int length = 0;
    if (sscanf(text, "/%3u/%3u%n", &gpu_instance, &compute_instance, &length) != 2 || text[length])
        return false;
    *instance = VCUDA_INSTANCE_BY_PLACE | gpu_instance << 8 | compute_instance << 20;
    return true;
}

/* GPU-1f2e3d4c-..., MIG-1f2e3d4c-..., MIG-GPU-1f2e3d4c-.../7/0: 32 hexadecimal digits with hyphens between. */
static bool parse(const char *text, struct name *name) {
    bool placed = strncmp(text, "MIG-GPU-", 8) == 0;
    const char *at = placed ? text + 8 : strchr(text, '-');
    unsigned digits = 0;
    *name = (struct name){.instance = strncmp(text, "MIG-", 4) == 0 ? VCUDA_INSTANCE_BY_UUID : 0};
    for (; at && *at && digits < 32; at++) {
        int value = digit(*at);
        if (*at == '-')
            continue;
        if (value < 0)
            return false;
        name->uuid[digits / 2] = (uint8_t)(name->uuid[digits / 2] << 4 | value);
        digits++;
    }
    return digits == 32 && (!placed || parse_place(at, &name->instance));
}

int share_card_of(const struct vcuda_limits_view *view, nvmlDevice_t device) {
    char text[128] = "";
    struct name name;
    if (real.nvmlDeviceGetUUID(device, text, sizeof text) != NVML_SUCCESS || !parse(text, &name))
        return -1;
    for (uint32_t i = 0; i < view->card_count; i++)
        if (view->card[i].instance == name.instance && !memcmp(view->card[i].uuid, name.uuid, sizeof name.uuid))
            return (int)i;
    return -1;
}

/* The words of the page that matter for one card; not a byte of the rest is trusted or needed. */
static bool read_usage(struct share *share) {
    struct {
        uint64_t magic;
        uint16_t abi_major, abi_minor;
        uint32_t size;
        uint8_t build_id[16];
        uint32_t slot_high;
        uint32_t reserved0;
    } head;
    off_t at = (off_t)(offsetof(struct vcuda_usage, card) + (size_t)share->card * sizeof share->usage);
    if (!read_at(share->fd, &head, sizeof head, 0) || head.magic != VCUDA_USAGE_MAGIC ||
        head.abi_major != VCUDA_ABI_MAJOR || !read_at(share->fd, &share->usage, sizeof share->usage, at))
        return false;
    share->slots = head.slot_high < VCUDA_MAX_SLOTS ? head.slot_high : VCUDA_MAX_SLOTS;
    return true;
}

bool share_open(struct share *share, nvmlDevice_t device) {
    struct vcuda_limits_view view;
    char path[PATHS_MAX];
    share->fd = -1;
    if (!share_cards(&view) || share_only_looks(&view) || (share->card = share_card_of(&view, device)) < 0 ||
        !paths_usage(path))
        return false;
    share->limits = view.card[share->card];
    int saved = errno;
    share->fd = open(path, O_RDONLY | O_CLOEXEC);
    bool whole = share->fd >= 0 && read_usage(share);
    if (!whole)
        share_close(share);
    errno = saved;
    return whole;
}

void share_close(struct share *share) {
    if (share->fd >= 0)
        close(share->fd);
    share->fd = -1;
}

void share_each(const struct share *share, void (*each)(const struct share_process *process, void *argument),
                void *argument) {
    struct vcuda_slot slot[BATCH];
    int saved = errno;
    for (unsigned from = 0; from < share->slots; from += BATCH) {
        unsigned count = share->slots - from < BATCH ? share->slots - from : BATCH;
        off_t at = (off_t)(offsetof(struct vcuda_usage, slot) + from * sizeof slot[0]);
        if (!read_at(share->fd, slot, count * sizeof slot[0], at))
            break;
        for (unsigned i = 0; i < count; i++) {
            struct share_process process = {.pid = slot[i].pid,
                                            .bytes = slot[i].charged[share->card] & VCUDA_CHARGED_MASK,
                                            .busy = slot[i].inflight[share->card] != 0};
            if (process.bytes && slots_alive(&slot[i], share->fd, from + i))
                each(&process, argument);
        }
    }
    errno = saved;
}

static void add(const struct share_process *process, void *sum) {
    *(uint64_t *)sum += process->bytes;
}

uint64_t share_used(const struct share *share) {
    uint64_t used = 0;
    share_each(share, add, &used);
    return share->limits.host_adjust < UINT64_MAX - used ? used + share->limits.host_adjust : UINT64_MAX;
}
