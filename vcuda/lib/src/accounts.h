/* How many bytes of a card each process holds: a container-wide word for the limit check, and a word in each process's
 * slot as the source of truth. Every function is lock-free and tolerates a kill at any instruction. */
#ifndef VCUDA_ACCOUNTS_H
#define VCUDA_ACCOUNTS_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes charged to the container on this card. */
uint64_t vcuda_charged(int card);

/* Reserve `bytes` unless the container would hold more than `limit`; the total never exceeds it, even briefly. Before
 * it refuses, slots of dead processes are freed once. A refusal is counted. False if not attached. */
bool vcuda_charge(int card, uint64_t bytes, uint64_t limit);

/* Charge memory that the driver has already allocated, without a check. False if not attached. */
bool vcuda_charge_taken(int card, uint64_t bytes);

/* Return a charge; at most what this process holds. */
void vcuda_discharge(int card, uint64_t bytes);

/* Add to the managed memory charged to this process, on all cards (wraps for negative amounts); and the container's
 * sum. */
void accounts_add_movable(uint64_t bytes);
uint64_t accounts_movable(void);

/* Set the bytes that this process has released and that stay charged until the host reports them gone. */
void accounts_set_untold(uint64_t bytes);

/* Call in the child of a fork: it holds nothing of its parent's memory. */
void accounts_forget(void);

/* Recompute the container's word from the live slots. */
void vcuda_repair(int card);
void vcuda_repair_all(void);

/* Free the slots of dead processes, and repair every card's word if there were any. Returns the number of slots freed.
 */
unsigned vcuda_reap(void);

#endif
