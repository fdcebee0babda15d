/* The driver's companion libraries, which the driver opens by SONAME alone. */
#ifndef VCUDA_COMPANIONS_H
#define VCUDA_COMPANIONS_H

/* Open, once, the companions that lie beside the real driver, so that their SONAMEs resolve in the driver's own
 * dlopen(). */
void companions_open(void);

#endif
