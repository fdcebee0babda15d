/* Memory imported from other processes: the exporting process must be able to detect that it is still held here. */
#ifndef VCUDA_IMPORTED_H
#define VCUDA_IMPORTED_H

#define IMPORTED_NOTHING (-1) /* no descriptor; the driver will report that */
#define IMPORTED_REFUSED (-2) /* no descriptor is left that would let the exporter detect the import */

/* Hold what is imported from `fd`: returns a descriptor that, while open, lets the exporter detect the import.
 * imported_unhold() closes it. */
int imported_hold(int fd);
void imported_unhold(int held);

#endif
