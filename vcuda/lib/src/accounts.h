/* Who holds how many bytes of a card: a container-wide word for the test, a word in each process's slot for the
 * truth. Every function is lock-free and may be interrupted by a kill at any instruction. */
#ifndef VCUDA_ACCOUNTS_H
#define VCUDA_ACCOUNTS_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes charged to the container on this card. */
uint64_t vcuda_charged(int card);

/* Reserve `bytes` if the container then holds no more than `limit`; at no instant does it. A refusal counts, after
 * slots of dead processes have been freed once. False without attachment. */
bool vcuda_charge(int card, uint64_t bytes, uint64_t limit);

/* Charge without a test: what the driver has taken already. False without attachment. */
bool vcuda_charge_taken(int card, uint64_t bytes);

/* Give back what was charged; never below what this process holds. */
void vcuda_discharge(int card, uint64_t bytes);

/* Of what this process is charged, on all cards: managed memory (less, where negative); and the sum of the container.
 */
void accounts_add_movable(uint64_t bytes);
uint64_t accounts_movable(void);

/* Bytes that this process has let go of and that stay charged until the host tells whether they are gone. */
void accounts_set_untold(uint64_t bytes);

/* In the child of a fork: what the parent holds is not its own. */
void accounts_forget(void);

/* Recompute the container's word from the live slots. */
void vcuda_repair(int card);
void vcuda_repair_all(void);

/* Free the slots of dead processes and repair every card's word if there were any. Returns how many. */
unsigned vcuda_reap(void);

#endif
