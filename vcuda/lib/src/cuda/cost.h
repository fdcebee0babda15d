/* What a launch of each kind is expected to cost: a table of 1,024 averages in each process. Launching threads read it;
 * only the settling thread writes averages. Times in ns. */
#ifndef VCUDA_COST_H
#define VCUDA_COST_H

#include <stdbool.h>
#include <stdint.h>

#include "token_bucket.h"

struct cost {
    uint64_t key;       /* 0: free */
    uint64_t ns;        /* how long a launch keeps its stream busy, an exponential average */
    uint64_t charge_ns; /* GPU time that a launch adds, an exponential average: less than `ns` where other streams run
                           beside it */
    uint64_t spread_ns; /* average distance of a launch from `ns` */
    uint64_t seen;      /* how often it was measured */
};

/* The key of a kind of launch: the function and its size rounded to a power of two. Never 0. */
static inline uint64_t cost_key(const void *what, uint64_t size) {
    uint64_t key = (uint64_t)(uintptr_t)what ^ (uint64_t)(64 - __builtin_clzll(size | 1)) << 56;
    return key * UINT64_C(0x9e3779b97f4a7c15) | 1;
}

#define COST_ENTRIES 1024
#define COST_AVERAGE_OVER 64 /* measured launches */
/* The same of a kind that varies by half of its mean. A mean that wanders is paid most often while it is low, by a
 * program whose limit holds it back: by the square of its relative error too little is charged. */
#define COST_VARIED_OVER 512
extern struct cost cost_table[COST_ENTRIES];

/* Look up the entry, or insert one with the initial estimate, evicting another if the table is full. */
struct cost *cost_search(uint64_t key);

static inline struct cost *cost_find(uint64_t key) {
    struct cost *cost = &cost_table[key >> 54];
    return __builtin_expect(__atomic_load_n(&cost->key, __ATOMIC_ACQUIRE) == key, 1) ? cost : cost_search(key);
}

static inline uint64_t cost_ns(const struct cost *cost) {
    return __atomic_load_n(&cost->ns, __ATOMIC_RELAXED);
}

static inline uint64_t cost_charge_ns(const struct cost *cost) {
    return __atomic_load_n(&cost->charge_ns, __ATOMIC_RELAXED);
}

static inline uint64_t cost_seen(const struct cost *cost) {
    return __atomic_load_n(&cost->seen, __ATOMIC_RELAXED);
}

/* True if the mean predicts the next launch poorly: durations vary, or few launches were measured. */
static inline bool cost_is_unsure(const struct cost *cost) {
    return cost_seen(cost) < COST_AVERAGE_OVER ||
           __atomic_load_n(&cost->spread_ns, __ATOMIC_RELAXED) > cost_ns(cost) / 4;
}

/* No kernel is assumed to be shorter. */
#define KERNEL_LEAST_NS 1000

/* This many launches of a kind are measured individually before its average is used. */
#define COST_FIRST 3

/* Record a measured launch: it kept its stream busy for `ns`, and added `charge_ns` to the card's busy time. */
void cost_measured(struct cost *cost, uint64_t ns, uint64_t charge_ns);

/* An earlier cost_measured() of this kind lacked `charge_ns`: its launch added that much more to the busy time. */
void cost_measured_more(struct cost *cost, uint64_t charge_ns);

#endif
