#include "cuda/recent_work.h"

#include <stdbool.h>

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t units(int64_t ns) {
    return ns / VCUDA_RECENT_WORK_UNIT_NS;
}

static uint64_t entry_of(uint32_t slot, int64_t from, int64_t to) {
    const int64_t longest = (1 << VCUDA_RECENT_WORK_UNITS_BITS) - 1, length = least(units(to) - units(from), longest);
    uint64_t began = (uint64_t)(units(to) - length) & UINT32_MAX;
    uint64_t low = (uint64_t)length << VCUDA_RECENT_WORK_SLOT_BITS | slot;
    return length > 0 ? began << 32 | low : 0;
}

void recent_work_add(struct vcuda_recent_work *recent, struct recent_entry *last, uint32_t slot, int64_t from,
                     int64_t to) {
    uint64_t entries = __atomic_load_n(&recent->entries, __ATOMIC_RELAXED);
    if (from < 0 || to <= from)
        return;
    bool stands = last->number && entries - last->number < VCUDA_RECENT_WORK_ENTRIES;
    if (stands && from <= last->to + RECENT_WORK_JOINS_NS && to >= last->from)
        *last = (struct recent_entry){last->number, least(from, last->from), most(to, last->to)};
    else
        *last = (struct recent_entry){__atomic_add_fetch(&recent->entries, 1, __ATOMIC_RELAXED), from, to};
    __atomic_store_n(&recent->entry[(last->number - 1) % VCUDA_RECENT_WORK_ENTRIES],
                     entry_of(slot, last->from, last->to), __ATOMIC_RELAXED);
}

/* Put it among those that were found, in the order in which they begin. */
static void insert(struct busy_interval *found, unsigned count, struct busy_interval one) {
    for (; count && found[count - 1].from > one.from; count--)
        found[count] = found[count - 1];
    found[count] = one;
}

/* What of an entry lies between these times; false: nothing does. Its beginning is the last one before `to` with these
 * low bits. */
static bool read(uint64_t entry, uint32_t slot, int64_t from, int64_t to, struct busy_interval *cut) {
    uint32_t whose = entry & ((1 << VCUDA_RECENT_WORK_SLOT_BITS) - 1), low = (uint32_t)entry;
    int64_t length = (int64_t)(low >> VCUDA_RECENT_WORK_SLOT_BITS) * VCUDA_RECENT_WORK_UNIT_NS;
    uint32_t before = (uint32_t)units(to) - (uint32_t)(entry >> 32);
    int64_t began = (units(to) - before) * VCUDA_RECENT_WORK_UNIT_NS;
    if (!length || whose == slot || began + length <= from)
        return false;
    *cut = (struct busy_interval){most(began, from), least(began + length, to)};
    return cut->from < cut->to;
}

/* Of intervals in the order in which they begin, those that meet become one. */
static unsigned unite(struct busy_interval *found, unsigned count) {
    unsigned kept = 0;
    for (unsigned i = 0; i < count; i++) {
        if (kept && found[i].from <= found[kept - 1].to)
            found[kept - 1].to = most(found[kept - 1].to, found[i].to);
        else
            found[kept++] = found[i];
    }
    return kept;
}

void recent_work_copy(struct recent_copy *copy, const struct vcuda_recent_work *recent) {
    uint64_t entries = __atomic_load_n(&recent->entries, __ATOMIC_RELAXED), made = entries - copy->entries;
    if (made > RECENT_WORK_COPIED) /* or another process has set their number back */
        *copy = (struct recent_copy){0};
    for (uint64_t n = VCUDA_RECENT_WORK_ENTRIES; n < made && n < RECENT_WORK_COPIED; n++)
        copy->entry[(entries - n - 1) % RECENT_WORK_COPIED] = 0;
    for (uint64_t n = entries; n && n + VCUDA_RECENT_WORK_ENTRIES > entries; n--)
        copy->entry[(n - 1) % RECENT_WORK_COPIED] =
            __atomic_load_n(&recent->entry[(n - 1) % VCUDA_RECENT_WORK_ENTRIES], __ATOMIC_RELAXED);
    copy->entries = entries;
}

unsigned recent_work_of_others(const struct recent_copy *copy, uint32_t slot, int64_t from, int64_t to,
                               struct busy_interval found[RECENT_WORK_COPIED]) {
    unsigned count = 0;
    struct busy_interval cut;
    for (unsigned i = 0; i < RECENT_WORK_COPIED && from >= 0; i++)
        if (read(copy->entry[i], slot, from, to, &cut))
            insert(found, count++, cut);
    return unite(found, count);
}
