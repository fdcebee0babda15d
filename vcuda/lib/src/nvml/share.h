/* The container's share of a card, read from the pages for one answer.
 *
 * NVML's readers (nvidia-smi, monitors) are no users of the card: they take no slot, map nothing and write nothing, so
 * what a tenant does to its usage page cannot hurt them. */
#ifndef VCUDA_SHARE_H
#define VCUDA_SHARE_H

#include <stdbool.h>
#include <stdint.h>

#include "nvml_types.h"
#include "page.h"

struct share {
    int card;
    int fd; /* of the usage page */
    unsigned slots;
    struct vcuda_card_limits limits;
    struct vcuda_card_usage usage;
};

/* The cards of the container's limits; false if they cannot be read: then nothing is changed of the driver's answers.
 */
bool share_cards(struct vcuda_limits_view *view);

/* Do the pages give nothing but a look at their cards (admin access)? Each card has a memory limit of zero then, which
 * no share has: NVML shows whole cards, as the driver does. */
bool share_only_looks(const struct vcuda_limits_view *view);

/* Is the driver's answer about a card to be changed into one about a share? */
bool share_is_shown(void);

/* Which of them this handle is, or -1. */
int share_card_of(const struct vcuda_limits_view *view, nvmlDevice_t device);

/* Open the share of this card; false if the pages have none, or only look. share_close() after use. */
bool share_open(struct share *share, nvmlDevice_t device);
void share_close(struct share *share);

/* Every living process that holds memory of the card. */
struct share_process {
    uint32_t pid;
    uint64_t bytes;
    bool busy; /* it has work in flight */
};
void share_each(const struct share *share, void (*each)(const struct share_process *process, void *argument),
                void *argument);

/* Bytes that the container's processes hold, and what the host knows beyond. */
uint64_t share_used(const struct share *share);

/* Percent of its share of GPU time that the container used lately. */
unsigned share_busy(const struct share *share);

#endif
