/* Tickets of launches that wait at a gate on their streams. The driver's thread serves a ticket, or the helper thread
 * does where the driver never will: each ticket is served once, and an old one by nobody. Any thread may call; there is
 * no lock. */
#ifndef VCUDA_GATE_TICKETS_H
#define VCUDA_GATE_TICKETS_H

#include <stdbool.h>
#include <stdint.h>

#define GATE_TICKETS 64 /* of a process, at a time */

/* A place among so many, or what has become of all of its tickets. */
struct gate_tickets {
    uint64_t place[GATE_TICKETS];
};

/* False: there is none left. What belongs to it is the caller's to write, at its place, until it waits. */
bool gate_ticket_take(struct gate_tickets *tickets, uint64_t *ticket);
static inline unsigned gate_ticket_place(uint64_t ticket) {
    return ticket % GATE_TICKETS;
}

/* From here on it may be served. */
void gate_ticket_waits(struct gate_tickets *tickets, uint64_t ticket);

/* True: it is the caller's to serve. False: it was served, or is being served. */
bool gate_ticket_serve(struct gate_tickets *tickets, uint64_t ticket);

/* Who took it or serves it gives it back. */
void gate_ticket_give_back(struct gate_tickets *tickets, uint64_t ticket);

/* The ticket that waits at this place; false if none does. */
bool gate_ticket_waits_at(const struct gate_tickets *tickets, unsigned place, uint64_t *ticket);

#endif
