#include "cuda/launch_wait.h"

#include <math.h>
#include <stddef.h>

/* An H100's host functions ran 34 to 116 us after their call, and their streams went on some 5 us after their return.
 */
#define HOLDING_NS 60000
#define RESUME_NS 5000
#define HOLDING_FIRST_NS 5000000 /* of a process that begins */
#define HOLDING_MOST_NS 5000000

#define EXACT_MOST_NS 100000u        /* of longer kernels the wait is a small part */
#define EXACT_FIRST 4u               /* launches of a kind are held as they come, ... */
#define EXACT_SOON_NS 1000000u       /* ... then one in so long until that is twice as sure as it has to be, ... */
#define EXACT_AGAIN_NS 1000000000u   /* ... or in so long, ... */
#define EXACT_SELDOM_NS 30000000000u /* ... or in so long where that told nothing: its calls block */
#define EXACT_WEIGHT 256
#define SURE_NS 100   /* an average is known if it is sure to so much, and ... */
#define SURE_PART 100 /* ... so small a part of what the kernels take, ... */
#define STEADY_NS 500
#define VARIES_MOST_NS 8000 /* ... that does not hide two kernels */

#define WAIT_FIRST 8u
#define WAIT_WEIGHT 256
#define WAIT_MOST_NS 40000 /* what seems to wait longer is of a thread that stood still, or met another's turn */

/* Beside the table of costs, because launches do not look at it. `key` is of the cost that it is of. */
static struct {
    uint64_t key, tried_at; /* any thread */
    uint32_t tries, told;
    bool is_known, is_settled;
    double ns, off; /* the average, and how far from it each was */
} kinds[COST_ENTRIES];

/* Is an average of so many known, where each is so far off? It is `times` as sure as it has to be. */
static bool is_sure(double off, uint32_t told, double kernel_ns, int times) {
    double most = (SURE_NS + kernel_ns / SURE_PART) / times;
    return off * off <= most * most * told;
}

static size_t place_of(const struct cost *cost) {
    return (size_t)(cost - cost_table);
}

static bool is_due(const struct cost *cost, uint64_t now) {
    const size_t at = place_of(cost);
    uint64_t key = __atomic_load_n(&cost->key, __ATOMIC_ACQUIRE), ns = cost_ns(cost);
    if (!cost_seen(cost) || ns > EXACT_MOST_NS)
        return false;
    if (__atomic_load_n(&kinds[at].key, __ATOMIC_RELAXED) != key)
        return true;
    uint64_t tried_at = __atomic_load_n(&kinds[at].tried_at, __ATOMIC_RELAXED);
    uint32_t told = __atomic_load_n(&kinds[at].told, __ATOMIC_RELAXED);
    uint64_t again = !told                                                      ? EXACT_SELDOM_NS
                     : __atomic_load_n(&kinds[at].is_settled, __ATOMIC_RELAXED) ? EXACT_AGAIN_NS
                                                                                : EXACT_SOON_NS;
    return __atomic_load_n(&kinds[at].tries, __ATOMIC_RELAXED) < EXACT_FIRST || now < tried_at ||
           now - tried_at >= again;
}

static void note_try(const struct cost *cost, uint64_t now) {
    const size_t at = place_of(cost);
    uint64_t key = __atomic_load_n(&cost->key, __ATOMIC_ACQUIRE);
    if (__atomic_load_n(&kinds[at].key, __ATOMIC_RELAXED) != key) {
        __atomic_store_n(&kinds[at].tries, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&kinds[at].told, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&kinds[at].is_known, false, __ATOMIC_RELAXED);
        __atomic_store_n(&kinds[at].is_settled, false, __ATOMIC_RELAXED);
        __atomic_store_n(&kinds[at].key, key, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&kinds[at].tried_at, now, __ATOMIC_RELAXED);
    __atomic_fetch_add(&kinds[at].tries, 1, __ATOMIC_RELAXED);
}

/* Threads that come at once may each find the same left: that is made good from what they earn next. */
static bool has_budget(struct holding_budget *budget, uint64_t now) {
    uint64_t at = __atomic_load_n(&budget->at, __ATOMIC_RELAXED);
    int64_t left = __atomic_load_n(&budget->left_ns, __ATOMIC_RELAXED);
    uint64_t passed = now > at ? now - at : 0;
    int64_t earned =
        at ? (int64_t)(passed < UINT64_C(1000000000) ? passed : UINT64_C(1000000000)) * HOLDING_PERMILLE / 1000
           : HOLDING_FIRST_NS;
    if (left + earned < HOLDING_NS)
        return false;
    if (!__atomic_compare_exchange_n(&budget->at, &at, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return false;
    int64_t most = HOLDING_MOST_NS - left;
    __atomic_fetch_add(&budget->left_ns, (earned < most ? earned : most) - HOLDING_NS, __ATOMIC_RELAXED);
    return true;
}

bool holding_wanted(struct holding_budget *budget, const struct cost *cost, uint64_t now) {
    if (!is_due(cost, now) || !has_budget(budget, now))
        return false;
    note_try(cost, now);
    return true;
}

void holding_took(struct holding_budget *budget, uint64_t ns) {
    int64_t took = (int64_t)(ns < HOLDING_MOST_NS ? ns : HOLDING_MOST_NS) + RESUME_NS;
    __atomic_fetch_sub(&budget->left_ns, took - HOLDING_NS, __ATOMIC_RELAXED);
}

void exact_told(const struct cost *cost, uint64_t ns) {
    const size_t at = place_of(cost);
    bool is_its = __atomic_load_n(&kinds[at].key, __ATOMIC_ACQUIRE) == __atomic_load_n(&cost->key, __ATOMIC_ACQUIRE);
    if (!is_its || ns > 2 * EXACT_MOST_NS) /* somebody else's turn came in between */
        return;
    uint32_t told = __atomic_load_n(&kinds[at].told, __ATOMIC_RELAXED);
    double exact = (double)(ns > KERNEL_LEAST_NS ? ns : KERNEL_LEAST_NS);
    if (!told) {
        kinds[at].ns = exact;
        kinds[at].off = 0;
    } else {
        double off = fabs(exact - kinds[at].ns);
        kinds[at].ns += (exact - kinds[at].ns) / (told + 1);
        kinds[at].off += (off - kinds[at].off) / (told < EXACT_WEIGHT ? told : EXACT_WEIGHT);
    }
    told += told < EXACT_WEIGHT;
    bool is_known =
        told >= EXACT_FIRST && kinds[at].off < VARIES_MOST_NS && is_sure(kinds[at].off, told, kinds[at].ns, 1);
    bool is_settled = is_known && is_sure(kinds[at].off, told, kinds[at].ns, 2);
    __atomic_store_n(&kinds[at].is_settled, is_settled, __ATOMIC_RELAXED);
    __atomic_store_n(&kinds[at].is_known, is_known, __ATOMIC_RELAXED);
    __atomic_store_n(&kinds[at].told, told, __ATOMIC_RELAXED);
}

uint64_t exact_ns(const struct cost *cost, bool *steady) {
    const size_t at = place_of(cost);
    bool is_its = __atomic_load_n(&kinds[at].key, __ATOMIC_ACQUIRE) == __atomic_load_n(&cost->key, __ATOMIC_ACQUIRE);
    *steady = kinds[at].off < STEADY_NS;
    return is_its && __atomic_load_n(&kinds[at].is_known, __ATOMIC_RELAXED) ? (uint64_t)kinds[at].ns : 0;
}

void launch_wait_told(struct launch_wait *wait, int64_t seemed_ns, uint64_t exact) {
    double waited = (double)seemed_ns - (double)exact;
    if (waited < -WAIT_MOST_NS || waited > WAIT_MOST_NS)
        return;
    if (wait->told)
        wait->off += (fabs(waited - wait->ns) - wait->off) / wait->told;
    wait->told += wait->told < WAIT_WEIGHT;
    wait->ns += (waited - wait->ns) / wait->told;
    wait->kernel_ns += ((double)exact - wait->kernel_ns) / wait->told;
}

uint64_t launch_wait_ns(const struct launch_wait *wait) {
    return wait->told < WAIT_FIRST || !is_sure(wait->off, wait->told, wait->kernel_ns, 1) ? 0
           : wait->ns > 1                                                                 ? (uint64_t)wait->ns
                                                                                          : 1;
}
