/* The cells that a limiter is held to: kernel lengths x gaps x rhythm x streams x synchronising x limits. */
#ifndef VCUDA_REPLAY_CELLS_H
#define VCUDA_REPLAY_CELLS_H

#include "program.h"
#include "replay.h"

#define CELL_NAME 128

struct cell {
    struct loop loop;
    uint32_t limit_percent;
    enum overlap overlap;
    char name[CELL_NAME];
};

/* The 576 cells, the 288 of them with several streams in both ways that kernels may overlap. */
extern const size_t cells_count;
struct cell cell_at(size_t index);

#endif
