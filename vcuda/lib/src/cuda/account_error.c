#include "cuda/account_error.h"

#define ERROR_MOST_US 1000000.0 /* so much is charged in a second at most */

static struct tally {
    uint64_t key;         /* of the cost that this is of */
    uint64_t ns;          /* charged by the mean before the window */
    uint64_t mean_ns;     /* as the window began */
    uint64_t measured_ns; /* in the window, of so many launches: */
    uint32_t launches;
} tallies[COST_ENTRIES];

static struct tally *tally_of(const struct cost *cost) {
    struct tally *tally = &tallies[cost - cost_table];
    uint64_t key = __atomic_load_n(&cost->key, __ATOMIC_ACQUIRE);
    if (tally->key != key)
        *tally = (struct tally){.key = key};
    return tally;
}

void account_error_tallied(struct vcuda_card_usage *usage, const struct cost *cost, uint64_t ns) {
    struct tally *tally = tally_of(cost);
    if (tally->launches) {
        double mean_ns = (double)tally->measured_ns / tally->launches;
        double us = (double)tally->ns * (mean_ns / (double)tally->mean_ns - 1) / 1000;
        us = us < -ERROR_MOST_US ? -ERROR_MOST_US : us > ERROR_MOST_US ? ERROR_MOST_US : us;
        __atomic_fetch_add(&usage->error_us2, (uint64_t)(us * us), __ATOMIC_RELAXED);
        *tally = (struct tally){.key = tally->key};
    }
    tally->ns += ns;
}

void account_error_measured(const struct cost *cost, uint64_t charge_ns) {
    struct tally *tally = tally_of(cost);
    if (!tally->launches)
        tally->mean_ns = cost_charge_ns(cost);
    tally->measured_ns += charge_ns;
    tally->launches++;
}
