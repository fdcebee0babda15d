/* Charging memory: reserve in the container's word before the driver is called, undo if it fails.
 *
 * The word (epoch over bytes) is the test and the slots are the truth: it is derived, and can be off only after a
 * process died between its two steps. A repair sets it to the sum over the live slots and raises the epoch. Order of
 * the steps, so that no straddling repair can lose bytes:
 *   charge     slot up, then compare-and-swap the word up; if the word's epoch moved meanwhile, take the slot down
 *              again and start over, with a repair afterwards (the passing one may have counted our intent);
 *   discharge  slot down, then the word down; if the epoch moved meanwhile, repair instead.
 * So the word is at no instant below what the container really holds.
 */
#include "accounts.h"

#include <errno.h>

#include "page.h"
#include "paths.h"
#include "slots.h"

static uint64_t bytes_of(uint64_t word) {
    return word & VCUDA_CHARGED_MASK;
}

static uint64_t epoch_of(uint64_t word) {
    return word >> VCUDA_CHARGED_BITS;
}

static uint64_t load(const uint64_t *word) {
    return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

static bool swap(uint64_t *word, uint64_t old, uint64_t new) {
    return __atomic_compare_exchange_n(word, &old, new, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

uint64_t vcuda_charged(int card) {
    struct vcuda_usage *usage = vcuda_usage();
    return usage ? bytes_of(load(&usage->card[card].charged)) : 0;
}

static uint64_t sum_of_slots(const struct vcuda_usage *usage, int card) {
    uint64_t sum = 0;
    unsigned high = slots_high(usage);
    for (unsigned i = 0; i < high; i++) {
        const struct vcuda_slot *slot = &usage->slot[i];
        if (__atomic_load_n(&slot->state, __ATOMIC_ACQUIRE) == VCUDA_SLOT_LIVE)
            sum += bytes_of(load(&slot->charged[card]));
    }
    return sum < VCUDA_CHARGED_MASK ? sum : VCUDA_CHARGED_MASK;
}

void vcuda_repair(int card) {
    struct vcuda_usage *usage = vcuda_usage();
    if (!usage)
        return;
    uint64_t *word = &usage->card[card].charged;
    uint64_t old, new;
    do {
        old = load(word);
        new = (epoch_of(old) + 1) << VCUDA_CHARGED_BITS | sum_of_slots(usage, card);
    } while (!swap(word, old, new));
    __atomic_fetch_add(&usage->repairs, 1, __ATOMIC_RELAXED);
}

void vcuda_repair_all(void) {
    struct vcuda_page_view *view = __atomic_load_n(&vcuda_page_view, __ATOMIC_ACQUIRE);
    uint32_t cards = view ? __atomic_load_n(&view->current, __ATOMIC_ACQUIRE)->card_count : 0;
    for (uint32_t i = 0; i < cards; i++)
        vcuda_repair((int)i);
}

unsigned vcuda_reap(void) {
    struct vcuda_usage *usage = vcuda_usage();
    char path[PATHS_MAX];
    if (!usage || !paths_usage(path))
        return 0;
    int saved = errno;
    unsigned reaped = slots_reap(usage, path, (unsigned)(vcuda_slot() - usage->slot));
    if (reaped)
        vcuda_repair_all();
    errno = saved;
    return reaped;
}

static void raise_peak(struct vcuda_card_usage *card, uint64_t bytes) {
    uint64_t peak = __atomic_load_n(&card->peak, __ATOMIC_RELAXED);
    while (peak < bytes &&
           !__atomic_compare_exchange_n(&card->peak, &peak, bytes, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

void accounts_add_movable(uint64_t bytes) {
    struct vcuda_slot *slot = vcuda_slot();
    if (slot)
        __atomic_fetch_add(&slot->movable, bytes, __ATOMIC_SEQ_CST);
}

uint64_t accounts_movable(void) {
    const struct vcuda_usage *usage = vcuda_usage();
    uint64_t sum = 0;
    for (unsigned i = 0, high = usage ? slots_high(usage) : 0; i < high; i++)
        if (__atomic_load_n(&usage->slot[i].state, __ATOMIC_ACQUIRE) == VCUDA_SLOT_LIVE)
            sum += load(&usage->slot[i].movable) & VCUDA_CHARGED_MASK;
    return sum < VCUDA_CHARGED_MASK ? sum : VCUDA_CHARGED_MASK;
}

void accounts_set_untold(uint64_t bytes) {
    struct vcuda_slot *slot = vcuda_slot();
    if (slot)
        __atomic_store_n(&slot->untold, bytes, __ATOMIC_SEQ_CST);
}

/* What this process holds by its own count. Anybody in the container can write zeros over the page; a process alone is
 * past its limit all the same. */
static uint64_t own[VCUDA_MAX_CARDS];

void accounts_forget(void) {
    for (int i = 0; i < VCUDA_MAX_CARDS; i++)
        __atomic_store_n(&own[i], 0, __ATOMIC_RELAXED);
}

/* One attempt to charge; false if the limit forbids it. */
static bool reserve(struct vcuda_usage *usage, struct vcuda_slot *slot, int card, uint64_t bytes, uint64_t limit) {
    uint64_t *word = &usage->card[card].charged;
    bool straddled = false;
    bool done = false;
    for (;;) {
        uint64_t old = load(word);
        uint64_t used = bytes_of(old), mine = __atomic_load_n(&own[card], __ATOMIC_RELAXED);
        if (bytes > limit || used > limit - bytes || mine > limit - bytes)
            break;
        __atomic_fetch_add(&slot->charged[card], bytes, __ATOMIC_SEQ_CST);
        if (swap(word, old, old + bytes)) {
            __atomic_fetch_add(&own[card], bytes, __ATOMIC_RELAXED);
            raise_peak(&usage->card[card], used + bytes);
            done = true;
            break;
        }
        __atomic_fetch_sub(&slot->charged[card], bytes, __ATOMIC_SEQ_CST);
        straddled |= epoch_of(load(word)) != epoch_of(old);
    }
    if (straddled)
        vcuda_repair(card);
    return done;
}

bool vcuda_charge(int card, uint64_t bytes, uint64_t limit) {
    struct vcuda_usage *usage = vcuda_usage();
    struct vcuda_slot *slot = vcuda_slot();
    if (!usage || !slot)
        return false;
    if (limit > VCUDA_CHARGED_MASK)
        limit = VCUDA_CHARGED_MASK;
    if (reserve(usage, slot, card, bytes, limit))
        return true;
    /* Before a refusal the word is made true: of dead processes, and of intents that a repair happened to see. */
    vcuda_reap();
    vcuda_repair(card);
    if (reserve(usage, slot, card, bytes, limit))
        return true;
    __atomic_fetch_add(&usage->card[card].refusals, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&usage->card[card].refused_bytes, bytes, __ATOMIC_RELAXED);
    return false;
}

bool vcuda_charge_taken(int card, uint64_t bytes) {
    struct vcuda_usage *usage = vcuda_usage();
    struct vcuda_slot *slot = vcuda_slot();
    return usage && slot && reserve(usage, slot, card, bytes, VCUDA_CHARGED_MASK);
}

/* Lower a word of what this process holds by at most that; returns by how much. */
static uint64_t lower(uint64_t *held, uint64_t bytes) {
    uint64_t old = load(held);
    uint64_t lowered;
    do
        lowered = bytes < old ? bytes : old;
    while (!__atomic_compare_exchange_n(held, &old, old - lowered, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return lowered;
}

void vcuda_discharge(int card, uint64_t bytes) {
    struct vcuda_usage *usage = vcuda_usage();
    struct vcuda_slot *slot = vcuda_slot();
    if (!usage || !slot)
        return;
    uint64_t *word = &usage->card[card].charged;
    uint64_t old = load(word);
    uint64_t epoch = epoch_of(old);
    lower(&own[card], bytes);
    uint64_t lowered = lower(&slot->charged[card], bytes);
    for (;; old = load(word)) {
        if (epoch_of(old) != epoch) {
            vcuda_repair(card);
            return;
        }
        uint64_t used = bytes_of(old);
        if (swap(word, old, old - (lowered < used ? lowered : used)))
            return;
    }
}
