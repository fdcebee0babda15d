/* When a card's gate is closed: arithmetic alone. No file is read here and no clock is looked at; times are
 * CLOCK_MONOTONIC in ns.
 *
 * A protected tenant is believed as far as its own cores go: pending work of its closes the gate for that part of the
 * time, and no longer, whatever its page says; and so do, for as long again, its pauses.
 */
#ifndef VCUDA_GATE_DECISION_H
#define VCUDA_GATE_DECISION_H

#include <stdbool.h>
#include <stdint.h>

#define DECISION_DEADLINE_NS UINT64_C(60000000) /* a gate opens by itself so long after the watcher was last seen */
#define DECISION_HOLD_NS UINT64_C(2000000)      /* no gate is held over a longer pause */
#define DECISION_WINDOW_NS UINT64_C(1000000000)

/* A protected tenant on a card. */
struct decision_tenant {
    uint32_t cores_q8;    /* its guaranteed share, percent x 256 */
    bool pending;         /* has work in flight */
    bool is_spent;        /* has closed the gate for all of its share of the last time */
    int32_t returns_q8;   /* of its pauses, how many were shorter than the longest hold, x 256 */
    int32_t soon_q8;      /* the same of a quarter of it: one piece of work follows another */
    int64_t soon_ns;      /* how long those were */
    int64_t credit_ns;    /* for how long it may yet close the gate */
    bool has_held;        /* its pauses have held the gate for as much, ... */
    int64_t hold_ns;      /* ... and for how long they may yet */
    uint64_t seen_at;     /* when credit was last brought up to date */
    uint64_t quiet_since; /* when its work was seen to have ended */
};

void decision_begin(struct decision_tenant *tenant, uint32_t cores_q8, uint64_t now);

/* What was seen of a card since the last look. */
struct decision_card {
    bool closed;        /* its gate is closed */
    uint32_t pending;   /* protected tenants that have work pending */
    uint64_t others_ns; /* GPU time of best-effort tenants: while theirs runs out, nobody closes the gate for nothing */
};

/* What its page says now. */
void decision_observe(struct decision_tenant *tenant, bool pending, const struct decision_card *card, uint64_t now);

/* Until when this tenant wants the gate closed, if nothing more is seen of it; 0 or past: it does not. One that mostly
 * comes back within the longest hold is waited for so long; one whose work sometimes follows at once, as one request
 * does another, is waited for some times as long as that takes. */
uint64_t decision_until(const struct decision_tenant *tenant, uint64_t now);

/* How many times the watcher may look in a while, whoever rings: a tenant that rings without end costs no more. */
struct decision_budget {
    uint64_t at;
    int64_t left_ns;
};

#define DECISION_LOOK_COST_NS 2500000 /* 400 looks a second */
#define DECISION_LOOKS_MOST_NS 250000000
#define DECISION_PAUSE_NS 1500000u

/* A look is due: how long to wait before it, 0 as a rule. */
uint64_t decision_pause_ns(struct decision_budget *budget, uint64_t now);

#endif
