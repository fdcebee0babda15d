/* Work that others' may have come between, on a card with protected and best-effort containers: what of its time was
 * its own, and what it says of what work of its kind costs. */
#ifndef VCUDA_CROSSED_WORK_H
#define VCUDA_CROSSED_WORK_H

#include "cuda/gpu_time.h"
#include "cuda/timing_span.h"
#include "page.h"

/* Did others' work come between this span's? Protected work meets what of best-effort work is in flight as it begins,
 * best-effort work runs out while the gate is closed, and of best-effort containers one may pass another that has the
 * turn: none of it is the card's time in turns, and known work is charged as known. */
bool is_crossed_work(const struct timing_span *span, const struct vcuda_limits_view *view, uint64_t now);

/* A crossed span `ran` for so long, of that `fresh_ns` beside no other work of its process: what of it is taken for
 * others' work, where `known_ns` is what it costs alone (0: not known). What is known follows. */
uint64_t crossed_work_met_ns(struct timing_span *span, const struct vcuda_limits_view *view,
                             const struct gpu_interval *ran, uint64_t known_ns, uint64_t fresh_ns, uint64_t now);

/* By what the time that it took is divided, where it is to be remembered. `takes_turns`: best-effort work, of which
 * much is not crossed and tells the truth at once. */
uint32_t crossed_work_stretch_q8(uint64_t took_ns, uint64_t known_ns, bool takes_turns);

#endif
