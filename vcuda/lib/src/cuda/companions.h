/* The driver's companions: libraries that it opens by SONAME alone. */
#ifndef VCUDA_COMPANIONS_H
#define VCUDA_COMPANIONS_H

/* Open those that lie beside the real driver, so that their SONAMEs resolve wherever the driver looks. Once. */
void companions_open(void);

#endif
