/* Memory that other processes may have been given: who holds it after this process has let go of it? */
#ifndef VCUDA_EXPORTED_H
#define VCUDA_EXPORTED_H

#include <stdbool.h>
#include <stdint.h>

/* A block or multicast object is named by a number, never used twice. */
uint64_t exported_name(void);

/* It was exported as `fd`, a descriptor, or as something that leaves no trace (fd < 0). */
void exported_as(uint64_t name, int fd);

/* This process has let go of it: give `bytes` of the card back, now or once nothing else can hold it. */
void exported_let_go(uint64_t name, int card, uint64_t bytes);

/* Look again at what waits for others to let go. */
void exported_settle(void);

#endif
