/* Decides when a card's gate is closed. Arithmetic only: no function reads a file or a clock. Times are CLOCK_MONOTONIC
 * in ns.
 *
 * A protected tenant is believed as far as its own cores: its pending work closes the gate for that part of the time
 * and no longer, whatever its page contains; its pauses may hold the gate for as long again. */
#ifndef VCUDA_GATE_DECISION_H
#define VCUDA_GATE_DECISION_H

#include <stdbool.h>
#include <stdint.h>

#define DECISION_DEADLINE_NS                                                                                           \
    UINT64_C(60000000)                     /* a gate opens by itself this long after the watcher last renewed it       \
                                            */
#define DECISION_HOLD_NS UINT64_C(2000000) /* no gate is held closed over a longer pause */
#define DECISION_WINDOW_NS UINT64_C(1000000000)

/* A protected tenant on a card. */
struct decision_tenant {
    uint32_t cores_q8;  /* its guaranteed share, percent x 256 */
    bool pending;       /* has work in flight */
    bool is_spent;      /* has closed the gate for all of its recent share */
    int32_t returns_q8; /* part of its pauses that were shorter than the longest hold, x 256 */
    int32_t soon_q8;   /* part of its pauses shorter than a quarter of that, x 256: one piece of work follows another */
    int64_t soon_ns;   /* average length of those short pauses */
    int64_t credit_ns; /* for how long it may still close the gate */
    bool has_held;     /* its pauses have used up their allowance for holding the gate, ... */
    int64_t hold_ns;   /* ... and how much of that allowance is left */
    uint64_t seen_at;  /* when the credit was last updated */
    uint64_t quiet_since; /* when its work was observed to have ended */
};

void decision_begin(struct decision_tenant *tenant, uint32_t cores_q8, uint64_t now);

/* The state of a card observed since the last pass. */
struct decision_card {
    bool closed;        /* its gate is closed */
    uint32_t pending;   /* protected tenants that have work pending */
    uint64_t others_ns; /* GPU time of best-effort tenants: while their work finishes, tenants that close the gate are
                           not charged for it */
};

/* Update the tenant from its page's present state. */
void decision_observe(struct decision_tenant *tenant, bool pending, const struct decision_card *card, uint64_t now);

/* Until when this tenant wants the gate closed, if nothing else is observed; 0 or past: not at all. A tenant that
 * mostly returns within the longest hold is waited for that long; a tenant whose work sometimes follows at once is
 * waited for some times as long as that takes. */
uint64_t decision_until(const struct decision_tenant *tenant, uint64_t now);

/* Bounds the watcher's passes, whichever tenant triggers them: one that triggers without end costs no more. */
struct decision_budget {
    uint64_t at;
    int64_t left_ns;
};

#define DECISION_LOOK_COST_NS 2500000 /* 400 passes a second */
#define DECISION_LOOKS_MOST_NS 250000000
#define DECISION_PAUSE_NS 1500000u

/* A pass is due: how long to wait before it, usually 0. */
uint64_t decision_pause_ns(struct decision_budget *budget, uint64_t now);

#endif
