/* Returns the charge of an allocation that has ended, of any kind. */
#ifndef VCUDA_DISCHARGE_H
#define VCUDA_DISCHARGE_H

#include "cuda/allocation_table.h"

void allocation_discharge(const struct allocation *item);

#endif
