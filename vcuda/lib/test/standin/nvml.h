/* The cards as NVML's handles see them. */
#ifndef STANDIN_NVML_H
#define STANDIN_NVML_H

#include "card.h"
#include "nv.h"

struct nvml_card {
    struct hold hold;
    int index;
    bool open;
    struct nvml_card *parent, *instance; /* of a MIG instance, and of the card that it is a part of */
};

extern int nvml_cards;
/* The card behind a handle, opened; else why not. A card counts as lost while `<state>/lost-<uuid>` exists. */
nvmlReturn_t nvml_find(nvmlDevice_t handle);
/* Of a divided card and its instance NVML has no times, whoever asks. */
static inline bool nvml_divided(nvmlDevice_t device) {
    return device->parent || device->instance;
}
/* The same, locked and brought up to the present; nvml_done unlocks. */
nvmlReturn_t nvml_look(nvmlDevice_t handle);
void nvml_done(nvmlDevice_t handle);
/* Microseconds since 1970, as NVML's time stamps are, of a moment on the monotonic clock. */
unsigned long long nvml_time_us(int64_t monotonic_ns);
int64_t nvml_monotonic_ns(unsigned long long time_us);
nvmlReturn_t nvml_copy(char *to, unsigned int length, const char *text);
/* NVLink: does the link exist, and does it end at a switch (-1) or at a card? -2: no such link. */
int nvlink_peer(const struct card_config *card, unsigned int link);

#endif
