#include "cuda/gate_tickets.h"

/* A place's word: the number of its ticket x 4, and what has become of it. */
enum { FREE, TAKEN, WAITS, SERVED, STATES };

static uint64_t word_of(uint64_t ticket, unsigned state) {
    return ticket / GATE_TICKETS * STATES + state;
}

static bool change(struct gate_tickets *tickets, unsigned place, uint64_t from, uint64_t to) {
    return __atomic_compare_exchange_n(&tickets->place[place], &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

bool gate_ticket_take(struct gate_tickets *tickets, uint64_t *ticket) {
    for (unsigned place = 0; place < GATE_TICKETS; place++) {
        uint64_t word = __atomic_load_n(&tickets->place[place], __ATOMIC_RELAXED), number = word / STATES + 1;
        if (word % STATES != FREE || !change(tickets, place, word, number * STATES + TAKEN))
            continue;
        *ticket = number * GATE_TICKETS + place;
        return true;
    }
    return false;
}

void gate_ticket_waits(struct gate_tickets *tickets, uint64_t ticket) {
    __atomic_store_n(&tickets->place[gate_ticket_place(ticket)], word_of(ticket, WAITS), __ATOMIC_RELEASE);
}

bool gate_ticket_serve(struct gate_tickets *tickets, uint64_t ticket) {
    return change(tickets, gate_ticket_place(ticket), word_of(ticket, WAITS), word_of(ticket, SERVED));
}

void gate_ticket_give_back(struct gate_tickets *tickets, uint64_t ticket) {
    __atomic_store_n(&tickets->place[gate_ticket_place(ticket)], word_of(ticket, FREE), __ATOMIC_RELEASE);
}

bool gate_ticket_waits_at(const struct gate_tickets *tickets, unsigned place, uint64_t *ticket) {
    uint64_t word = __atomic_load_n(&tickets->place[place], __ATOMIC_ACQUIRE);
    *ticket = word / STATES * GATE_TICKETS + place;
    return word % STATES == WAITS;
}
