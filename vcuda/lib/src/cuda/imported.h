/* Memory of other processes that this one has imported: their makers must learn that it is held here. */
#ifndef VCUDA_IMPORTED_H
#define VCUDA_IMPORTED_H

#define IMPORTED_NOTHING (-1) /* no descriptor: the driver will say so */
#define IMPORTED_REFUSED (-2) /* no descriptor is left to tell the maker by */

/* What is imported from `fd` is held: returns a descriptor that tells its maker so while it is open. */
int imported_hold(int fd);
void imported_unhold(int held);

#endif
