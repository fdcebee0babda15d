/* Whose memory is it: which of the pages' cards a device is, and which context the calling thread allocates in. */
#ifndef VCUDA_DEVICE_MAP_H
#define VCUDA_DEVICE_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "cu_types.h"

/* In place of a card's number. */
#define CARD_UNKNOWN (-1) /* the pages do not have it: it was not given to this container */
#define CARD_NONE (-2)    /* no card's memory, or nothing is counted in this process */

struct mapped_context {
    CUdevice device;
    int card;
    uint64_t owner; /* the context's id: unlike its handle, never used twice */
};

/* The card of the pages that this device is, whatever number the process sees it under; CARD_NONE if there is no such
 * device, as the driver will say. */
int device_map_card(CUdevice device);

/* The card whose memory this location is; CARD_NONE for the host's. A part of a card, or a location that is not said,
 * counts as the current context's card, without one as the first. */
int device_map_card_at(CUmemLocation location);

/* Where the calling thread's current context allocates; false without one, and the driver will say so. */
bool device_map_current(struct mapped_context *where);

/* Where this stream's context allocates. The null streams are the current context's. */
bool device_map_of_stream(CUstream stream, struct mapped_context *where);

/* A context's id; 0 if it is none. */
uint64_t context_id_of(CUcontext context);

/* Contexts are going or gone: what threads remember of theirs is to be asked again. */
void device_map_forget(void);

#endif
