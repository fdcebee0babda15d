/* Cells by number. The limit varies fastest, so that one bare run serves the three limits that follow one another. */
#include "cells.h"

#include <stdio.h>

static const uint64_t kernels_us[] = {10, 50, 200, 1000}, gaps_us[] = {30, 100, 1000, 10000};
static const uint32_t synchronise_every[] = {0, 200, 1}, limits_percent[] = {99, 50, 30};
static const struct {
    uint32_t streams;
    enum overlap overlap;
} spreads[] = {{1, ONE_AT_A_TIME}, {4, ONE_AT_A_TIME}, {4, SIDE_BY_SIDE}};

#define COUNT(table) (sizeof(table) / sizeof *(table))

const size_t cells_count =
    COUNT(kernels_us) * COUNT(gaps_us) * 2 * COUNT(spreads) * COUNT(synchronise_every) * COUNT(limits_percent);

/* The last digit of `index` in a number system whose digit here has `base` values. */
static size_t digit(size_t *index, size_t base) {
    size_t value = *index % base;
    *index /= base;
    return value;
}

struct cell cell_at(size_t index) {
    struct cell cell = {.limit_percent = limits_percent[digit(&index, COUNT(limits_percent))]};
    size_t synchronise = digit(&index, COUNT(synchronise_every)), spread = digit(&index, COUNT(spreads));
    bool jittered = digit(&index, 2) == 1;
    size_t gap = digit(&index, COUNT(gaps_us)), kernel = digit(&index, COUNT(kernels_us));
    cell.overlap = spreads[spread].overlap;
    cell.loop = (struct loop){
        .kernel_ns = kernels_us[kernel] * 1000,
        .gap_ns = gaps_us[gap] * 1000,
        .jittered = jittered,
        .streams = spreads[spread].streams,
        .synchronise_every = synchronise_every[synchronise],
    };
    snprintf(cell.name, sizeof cell.name, "kernel-%lluus gap-%lluus %s %s sync-%s limit-%u",
             (unsigned long long)kernels_us[kernel], (unsigned long long)gaps_us[gap],
             jittered ? "jittered" : "regular",
             cell.loop.streams == 1         ? "1-stream"
             : cell.overlap == SIDE_BY_SIDE ? "4-streams-side-by-side"
                                            : "4-streams-one-at-a-time",
             synchronise == 0   ? "never"
             : synchronise == 1 ? "every-200"
                                : "each",
             cell.limit_percent);
    return cell;
}
