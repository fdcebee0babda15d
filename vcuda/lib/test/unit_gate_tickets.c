/* Tickets of launches that wait at a gate by themselves: each check prints a line if it fails; the program's answer is
 * how many did. */
#include "cuda/gate_tickets.h"

#include <pthread.h>

#include "check.h"

static void a_ticket_is_served_once(void) {
    struct gate_tickets tickets = {0};
    uint64_t ticket;
    CHECK(gate_ticket_take(&tickets, &ticket));
    CHECK(!gate_ticket_serve(&tickets, ticket), "it does not wait yet");
    gate_ticket_waits(&tickets, ticket);
    CHECK(gate_ticket_serve(&tickets, ticket));
    CHECK(!gate_ticket_serve(&tickets, ticket));
    gate_ticket_give_back(&tickets, ticket);
    CHECK(!gate_ticket_serve(&tickets, ticket));
}

static void who_comes_with_a_ticket_of_old_serves_nobody(void) {
    struct gate_tickets tickets = {0};
    uint64_t old, new, found;
    CHECK(gate_ticket_take(&tickets, &old));
    gate_ticket_waits(&tickets, old);
    CHECK(gate_ticket_serve(&tickets, old));
    gate_ticket_give_back(&tickets, old);
    CHECK(gate_ticket_take(&tickets, &new) && gate_ticket_place(new) == gate_ticket_place(old) && new != old);
    gate_ticket_waits(&tickets, new);
    CHECK(!gate_ticket_serve(&tickets, old));
    CHECK(gate_ticket_waits_at(&tickets, gate_ticket_place(new), &found) && found == new);
    CHECK(gate_ticket_serve(&tickets, new));
    CHECK(!gate_ticket_waits_at(&tickets, gate_ticket_place(new), &found));
}

static void there_are_so_many_and_no_more(void) {
    struct gate_tickets tickets = {0};
    uint64_t ticket[GATE_TICKETS], more;
    for (int i = 0; i < GATE_TICKETS; i++)
        CHECK(gate_ticket_take(&tickets, &ticket[i]));
    CHECK(!gate_ticket_take(&tickets, &more));
    gate_ticket_give_back(&tickets, ticket[7]);
    CHECK(gate_ticket_take(&tickets, &more) && gate_ticket_place(more) == gate_ticket_place(ticket[7]));
}

enum { THREADS = 4, ROUNDS = 20000 };
static struct gate_tickets shared;
static uint32_t taken, served, refused;

/* Takes tickets, and serves whatever waits: its own or another's. */
static void *take_and_serve(void *unused) {
    uint64_t ticket;
    (void)unused;
    for (int i = 0; i < ROUNDS; i++) {
        if (gate_ticket_take(&shared, &ticket)) {
            __atomic_fetch_add(&taken, 1, __ATOMIC_RELAXED);
            gate_ticket_waits(&shared, ticket);
        }
        for (unsigned place = 0; place < GATE_TICKETS; place++)
            if (gate_ticket_waits_at(&shared, place, &ticket)) {
                bool mine = gate_ticket_serve(&shared, ticket);
                __atomic_fetch_add(mine ? &served : &refused, 1, __ATOMIC_RELAXED);
                if (mine)
                    gate_ticket_give_back(&shared, ticket);
            }
    }
    return NULL;
}

static void of_many_threads_one_serves_each(void) {
    pthread_t thread[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&thread[i], NULL, take_and_serve, NULL) == 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    CHECK(taken == served && taken > 0);
}

int main(void) {
    a_ticket_is_served_once();
    who_comes_with_a_ticket_of_old_serves_nobody();
    there_are_so_many_and_no_more();
    of_many_threads_one_serves_each();
    return checked();
}
