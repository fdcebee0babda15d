// The roll-out of gpu_manager/domain/score/fragmentation.py, with the same integers: requests are placed on the cards
// of a room, bag by bag, each on the card with the least room that fits.
//
// A card is one number: cores, a guard bit, units of memory, the card's position. One subtraction places a request;
// what lacks cores or memory comes out past LIMIT, and the minimum over the cards is the best fit.
#include <stdint.h>

#define MOST_CARDS 64
#define BAGS 128
#define PLACE_BITS 6
#define GUARD_AT 23
#define CORES_AT 24
#define LIMIT (UINT32_C(1) << 31)
#define MEMORY ((UINT32_C(1) << (GUARD_AT - PLACE_BITS)) - 1)
#define STEPS_BETWEEN_CHECKS 6

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GLIBC__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx2", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

struct room {
    uint32_t free[MOST_CARDS][BAGS];
    int32_t cpu[BAGS];
};

// Place one request in each bag, if it fits.
FOR_EACH_PROCESSOR static void place(struct room *restrict room, int cards, const uint32_t *restrict asked,
                                     const int32_t *restrict cpu) {
    uint32_t best[BAGS];
    for (int bag = 0; bag < BAGS; bag++)
        best[bag] = LIMIT;
    for (int card = 0; card < cards; card++)
        for (int bag = 0; bag < BAGS; bag++) {
            uint32_t rest = room->free[card][bag] - asked[bag];
            rest |= (rest >> GUARD_AT & 1) << 31;
            best[bag] = rest < best[bag] ? rest : best[bag];
        }
    for (int bag = 0; bag < BAGS; bag++) {
        int placed = best[bag] < LIMIT && room->cpu[bag] >= cpu[bag];
        room->cpu[bag] -= placed ? cpu[bag] : 0;
        best[bag] = placed ? best[bag] : LIMIT;
    }
    for (int card = 0; card < cards; card++)
        for (int bag = 0; bag < BAGS; bag++) {
            uint32_t rest = room->free[card][bag] - asked[bag];
            room->free[card][bag] = rest == best[bag] ? rest : room->free[card][bag];
        }
}

FOR_EACH_PROCESSOR static uint32_t largest(const struct room *room, int cards) {
    uint32_t most = 0;
    for (int card = 0; card < cards; card++)
        for (int bag = 0; bag < BAGS; bag++)
            most = room->free[card][bag] > most ? room->free[card][bag] : most;
    return most;
}

__attribute__((visibility("default"))) void vcuda_roll_out(int rooms, int cards, const uint32_t *free,
                                                           const int32_t *cpu, const int64_t *model, int steps,
                                                           int models, const uint32_t *asked, const int32_t *asked_cpu,
                                                           uint32_t least, int64_t *cores_left, int64_t *units_left);

// ``free``: room, card. ``asked``: step, model, bag; ``asked_cpu``: step, bag. Rooms without a card that has ``least``
// are done. ``cards`` is MOST_CARDS at most.
void vcuda_roll_out(int rooms, int cards, const uint32_t *free, const int32_t *cpu, const int64_t *model, int steps,
                    int models, const uint32_t *asked, const int32_t *asked_cpu, uint32_t least, int64_t *cores_left,
                    int64_t *units_left) {
    struct room room;
    for (int at = 0; at < rooms; at++) {
        int own = cards; // without the full cards at the end, on which nothing fits: they are most of the table
        while (own > 0 && free[at * cards + own - 1] >> CORES_AT == 0)
            own--;
        for (int bag = 0; bag < BAGS; bag++) {
            room.cpu[bag] = cpu[at];
            for (int card = 0; card < own; card++)
                room.free[card][bag] = free[at * cards + card];
        }
        for (int step = 0; step < steps; step++) {
            if (step % STEPS_BETWEEN_CHECKS == 0 && largest(&room, own) < least)
                break;
            place(&room, own, asked + ((int64_t)step * models + model[at]) * BAGS, asked_cpu + (int64_t)step * BAGS);
        }
        int64_t cores = 0, units = 0;
        for (int card = 0; card < own; card++)
            for (int bag = 0; bag < BAGS; bag++) {
                uint32_t left = room.free[card][bag];
                cores += left >> CORES_AT;
                units += left >> CORES_AT ? left >> PLACE_BITS & MEMORY : 0;
            }
        cores_left[at] = cores;
        units_left[at] = units;
    }
}
