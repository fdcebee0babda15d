/* Giving back what was charged for an allocation that is gone, whatever kind it is of. */
#ifndef VCUDA_DISCHARGE_H
#define VCUDA_DISCHARGE_H

#include "cuda/allocation_table.h"

void allocation_discharge(const struct allocation *item);

#endif
