/* Memory of other processes that this one has imported: their makers must learn that it is held here. */
#ifndef VCUDA_IMPORTED_H
#define VCUDA_IMPORTED_H

/* What was imported from `fd` is held: returns a descriptor that tells its maker so while it is open, -1 without. */
int imported_hold(int fd);
void imported_unhold(int held);

#endif
