/* Tickets of deferred launches. The driver's thread serves a ticket, or the helper thread does if the driver never
 * will. Each ticket is served exactly once, and a ticket of an earlier launch never. Any thread may call; lock-free. */
#ifndef VCUDA_GATE_TICKETS_H
#define VCUDA_GATE_TICKETS_H

#include <stdbool.h>
#include <stdint.h>

#define GATE_TICKETS 64 /* at a time, in each process */

/* State of each place: its current ticket and whether it is free, taken, waiting or served. */
struct gate_tickets {
    uint64_t place[GATE_TICKETS];
};

/* Take a free ticket; false if none is left. Until gate_ticket_waits() the caller alone may write the data at its
 * place. */
bool gate_ticket_take(struct gate_tickets *tickets, uint64_t *ticket);
static inline unsigned gate_ticket_place(uint64_t ticket) {
    return ticket % GATE_TICKETS;
}

/* From now on the ticket may be served. */
void gate_ticket_waits(struct gate_tickets *tickets, uint64_t ticket);

/* True if the caller must serve the ticket; false if it was served or is being served. */
bool gate_ticket_serve(struct gate_tickets *tickets, uint64_t ticket);

/* Return a ticket; called by the thread that took or serves it. */
void gate_ticket_give_back(struct gate_tickets *tickets, uint64_t ticket);

/* Get the ticket that waits at this place; false if none does. */
bool gate_ticket_waits_at(const struct gate_tickets *tickets, unsigned place, uint64_t *ticket);

#endif
