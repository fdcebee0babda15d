#include "cuda/held_idle.h"
#include "slots.h"

void held_idle_ran(struct vcuda_card_usage *usage, uint64_t launched, uint64_t end) {
    uint64_t from = __atomic_load_n(&usage->idle_from_ns, __ATOMIC_RELAXED);
    while (from < end &&
           !__atomic_compare_exchange_n(&usage->idle_from_ns, &from, end, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    uint64_t begin = from > launched ? from : launched;
    if (begin < end)
        __atomic_fetch_add(&usage->in_flight_ns, end - begin, __ATOMIC_RELAXED);
}

void held_idle_waited(struct vcuda_usage *usage, int card, uint64_t since, uint64_t now) {
    struct vcuda_card_usage *line = &usage->card[card];
    if (slots_busy(usage, card))
        return;
    uint64_t from = __atomic_load_n(&line->idle_from_ns, __ATOMIC_RELAXED), begin;
    do {
        begin = from > since ? from : since;
        if (begin >= now)
            return;
    } while (!__atomic_compare_exchange_n(&line->idle_from_ns, &from, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    __atomic_fetch_add(&line->held_idle_ns, now - begin, __ATOMIC_RELAXED);
}
