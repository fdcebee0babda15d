/* The container's share of a card, read from the control pages for one NVML answer.
 *
 * NVML programs (nvidia-smi, monitors) do not use the card: they take no slot, map nothing and write nothing, so a
 * tenant cannot harm them through its usage page. */
#ifndef VCUDA_SHARE_H
#define VCUDA_SHARE_H

#include <stdbool.h>
#include <stdint.h>

#include "nvml_types.h"
#include "page.h"

struct share {
    int card;
    int fd; /* the open usage page */
    unsigned slots;
    struct vcuda_card_limits limits;
    struct vcuda_card_usage usage;
};

/* The cards of the container's limits; false if they cannot be read: the driver's answers are then left unchanged. */
bool share_cards(struct vcuda_limits_view *view);

/* True if the pages only grant a view of their cards (admin access). Each card then has a memory limit of zero, which
 * no share has, and NVML shows whole cards, as the driver does. */
bool share_only_looks(const struct vcuda_limits_view *view);

/* True if the driver's answer about a card must be replaced by one about the share. */
bool share_is_shown(void);

/* The index of this handle's card, or -1. */
int share_card_of(const struct vcuda_limits_view *view, nvmlDevice_t device);

/* Open the share of this card; false if the pages have none or grant admin access only. Call share_close() after use.
 */
bool share_open(struct share *share, nvmlDevice_t device);
void share_close(struct share *share);

/* A living process that holds memory of the card; share_each() passes every one to `each`. */
struct share_process {
    uint32_t pid;
    uint64_t bytes;
    bool busy; /* it has work in flight */
};
void share_each(const struct share *share, void (*each)(const struct share_process *process, void *argument),
                void *argument);

/* Bytes that the container's processes hold, plus what the host observes beyond them. */
uint64_t share_used(const struct share *share);

/* Recent use of GPU time, in percent of the container's share. */
unsigned share_busy(const struct share *share);

#endif
