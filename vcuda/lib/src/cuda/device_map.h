/* Which of the pages' cards a CUDA device is. */
#ifndef VCUDA_DEVICE_MAP_H
#define VCUDA_DEVICE_MAP_H

#include "cu_types.h"

/* In place of a card's number. */
#define CARD_UNKNOWN (-1) /* the pages do not have it: it was not given to this container */
#define CARD_NONE (-2)    /* no card's memory, or nothing is counted in this process */

/* The card of the pages that this device is, whatever number the process sees it under; CARD_NONE if there is no such
 * device, as the driver will say. */
int device_map_card(CUdevice device);

#endif
