#include "cuda/stall.h"

/* Each but the last is of the time alone: what is sure, what becomes so if nobody is heard of, and what follows. */
static struct kind {
    uint64_t key; /* of the cost that all of this is of */
    uint64_t known_ns, pending_ns, latest_ns;
    uint64_t since; /* of `latest_ns` */
    uint32_t known_runs, pending_runs, latest_runs;
} kinds[COST_ENTRIES];

static uint64_t most(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static void measured_alone(struct kind *kind, uint64_t took_ns, uint64_t now) {
    if (now - kind->since > STALL_SURE_NS) {
        kind->known_ns = most(kind->known_ns, kind->pending_ns);
        kind->known_runs += kind->pending_runs;
        kind->pending_ns = kind->latest_ns;
        kind->pending_runs = kind->latest_runs;
        kind->latest_ns = kind->latest_runs = 0;
        kind->since = now;
    }
    kind->latest_ns = most(kind->latest_ns, took_ns);
    kind->latest_runs++;
}

void stall_measured(struct vcuda_card_usage *usage, const struct cost *cost, uint64_t took_ns, bool shared,
                    uint64_t now) {
    struct kind *kind = &kinds[cost - cost_table];
    uint64_t key = __atomic_load_n(&cost->key, __ATOMIC_ACQUIRE);
    if (kind->key != key)
        *kind = (struct kind){.key = key, .since = now};
    if (!shared) {
        measured_alone(kind, took_ns, now);
        return;
    }
    kind->pending_ns = kind->latest_ns = kind->pending_runs = kind->latest_runs = 0;
    kind->since = now;
    if (kind->known_runs < STALL_RUNS || kind->known_ns > STALL_KNOWN_MOST_NS)
        return;
    __atomic_fetch_add(&usage->known_launches, 1, __ATOMIC_RELAXED);
    if (took_ns < kind->known_ns + STALL_LEAST_NS)
        return;
    __atomic_fetch_add(&usage->stalled_launches, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&usage->stalled_ns, took_ns - kind->known_ns, __ATOMIC_RELAXED);
}
