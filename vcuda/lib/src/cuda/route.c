/* Routing by pointer: the driver has already chosen the variant that version and flags ask for, and the pointer says
 * which exported function that is. Names alone cannot: one name has variants with different arguments.
 *
 * Two cases remain for the table of (name, since version, per-thread stream) that the headers define: a pointer that
 * is no exported function, and one that several exported names share, none of them with the symbol's name.
 */
#include "cuda/route.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "attachment.h"
#include "entries.h"
#include "interposer.h"

#define NO_NAME VCUDA_NAMES

struct pair {
    void *pointer;
    unsigned id;
};

/* Exported functions of the driver, sorted by address. */
struct map {
    unsigned count;
    struct pair pair[VCUDA_NAMES];
};

struct variant {
    char name[64];
    int since;
    bool per_thread;
    unsigned id;
};

static const struct variant variants[] = {
#define VARIANT(name, since, per_thread, symbol) {name, since, per_thread, ID_##symbol},
#include "variants.inc"
#undef VARIANT
};

static struct map *published;

static int by_pointer(const void *left, const void *right) {
    uintptr_t a = (uintptr_t)((const struct pair *)left)->pointer, b = (uintptr_t)((const struct pair *)right)->pointer;
    return a < b ? -1 : a > b;
}

/* Built whole, then published; a thread that loses the race throws its own away. NULL if there is no memory. */
static const struct map *the_map(void) {
    struct map *map = __atomic_load_n(&published, __ATOMIC_ACQUIRE);
    if (map || !(map = malloc(sizeof *map)))
        return map;
    map->count = 0;
    for (unsigned id = 0; id < VCUDA_NAMES; id++) {
        void *pointer = vcuda_interposer_find(vcuda_interposer_name(id));
        if (pointer)
            map->pair[map->count++] = (struct pair){pointer, id};
    }
    qsort(map->pair, map->count, sizeof map->pair[0], by_pointer);
    struct map *none = NULL;
    if (__atomic_compare_exchange_n(&published, &none, map, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return map;
    free(map);
    return none;
}

/* Is `exported` the symbol's own name, or a variant of it: symbol[_v2][_ptsz]? */
static bool is_variant_of(const char *exported, const char *symbol) {
    size_t length = strlen(symbol);
    if (strncmp(exported, symbol, length))
        return false;
    const char *rest = exported + length;
    if (rest[0] == '_' && rest[1] == 'v' && rest[2] >= '0' && rest[2] <= '9')
        rest += 3;
    return !*rest || !strcmp(rest, "_ptsz") || !strcmp(rest, "_ptds");
}

/* The table's answer: the newest variant that is not newer than the version asked for. */
static unsigned by_name(const char *symbol, int version, bool per_thread, bool *known) {
    unsigned best = NO_NAME;
    int newest = -1;
    *known = false;
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        const struct variant *v = &variants[i];
        if (strcmp(v->name, symbol))
            continue;
        *known = true;
        /* A function without a per-thread form has one form for both. */
        int rank = v->since * 2 + v->per_thread;
        if (v->since <= version && (!v->per_thread || per_thread) && rank > newest) {
            newest = rank;
            best = v->id;
        }
    }
    return best;
}

/* The one exported name at this address; of several, the one that is a variant of the symbol. */
static unsigned by_address(const char *symbol, void *pointer, bool *shared) {
    const struct map *map = the_map();
    *shared = false;
    if (!map)
        return NO_NAME;
    unsigned low = 0, high = map->count;
    while (low < high) {
        unsigned middle = (low + high) / 2;
        if ((uintptr_t)map->pair[middle].pointer < (uintptr_t)pointer)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == map->count || map->pair[low].pointer != pointer)
        return NO_NAME;
    if (low + 1 == map->count || map->pair[low + 1].pointer != pointer)
        return map->pair[low].id;
    *shared = true;
    unsigned found = NO_NAME;
    for (; low < map->count && map->pair[low].pointer == pointer; low++) {
        unsigned id = map->pair[low].id;
        if (is_variant_of(vcuda_interposer_name(id), symbol) && (found == NO_NAME || vcuda_entry(id)))
            found = id;
    }
    return found;
}

void *route(const char *symbol, int version, bool per_thread, void *pointer) {
    bool shared, known = true;
    unsigned id = by_address(symbol, pointer, &shared);
    bool named = id == NO_NAME;
    if (named)
        id = by_name(symbol, version, per_thread, &known);
    if (!known && !shared)
        vcuda_count_unknown(symbol);
    void *entry = id == NO_NAME ? NULL : vcuda_entry(id);
    if (!entry)
        return pointer;
    if (named)
        vcuda_count_routed_by_name(symbol);
    return entry;
}
