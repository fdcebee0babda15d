/* Maps CUDA devices to the cards of the control pages. */
#ifndef VCUDA_DEVICE_MAP_H
#define VCUDA_DEVICE_MAP_H

#include "cu_types.h"

/* Returned in place of a card's index. */
#define CARD_UNKNOWN (-1) /* the card is not in the control pages: it was not given to this container */
#define CARD_NONE (-2)    /* not a card's memory, or nothing is counted in this process */

/* The card of this device, independent of the number under which the process sees it; CARD_NONE if the device does not
 * exist, which the driver then reports. */
int device_map_card(CUdevice device);

#endif
