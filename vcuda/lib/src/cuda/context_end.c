#include "cuda/context_end.h"

#include "cuda/context_registry.h"
#include "fork.h"
#include "lock.h"

#include <stddef.h>

static bool busy; /* lock of the list */
static struct context_end *ends;

/* The calls are other threads', which a child does not have. */
static void forget_in_child(void) {
    busy = false;
    ends = NULL;
}

void context_end_begins(struct context_end *end, uint64_t id) {
    fork_forgets(forget_in_child);
    end->id = id;
    spin_lock(&busy);
    end->next = ends;
    ends = end;
    spin_unlock(&busy);
}

void context_end_is_over(struct context_end *end) {
    spin_lock(&busy);
    for (struct context_end **at = &ends; *at; at = &(*at)->next)
        if (*at == end) {
            *at = end->next;
            break;
        }
    spin_unlock(&busy);
}

bool context_end_may_be(uint64_t id) {
    uint64_t owner = context_owner(id);
    bool found = false;
    spin_lock(&busy);
    for (const struct context_end *end = ends; end && !found; end = end->next)
        found = !end->id || end->id == id || end->id == owner;
    spin_unlock(&busy);
    return found;
}
