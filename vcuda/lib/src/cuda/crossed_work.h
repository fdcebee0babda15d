/* Crossed work: launches whose measured time may include other containers' work, on a card with protected and best-
 * effort containers. Decides how much of the time was the launch's own, and what it shows about the cost of its kind.
 * Only the settling thread calls these functions. */
#ifndef VCUDA_CROSSED_WORK_H
#define VCUDA_CROSSED_WORK_H

#include "cuda/gpu_time.h"
#include "cuda/timing_span.h"
#include "page.h"

/* True if other containers' work may have run during this span. Protected work meets best-effort work that is in flight
 * when it begins; best-effort work finishes while the gate is closed; one best-effort container may overtake another
 * that holds the time slice. Such time is not in the card's time slices, and work of known cost is charged that cost.
 */
bool is_crossed_work(const struct timing_span *span, const struct vcuda_limits_view *view, uint64_t now);

/* How much of `ran`, the interval of a crossed span, is attributed to other containers. `fresh_ns`: the part of it
 * beside no other work of this process; `known_ns`: its cost alone (0: unknown). Also updates the known cost. */
uint64_t crossed_work_met_ns(struct timing_span *span, const struct vcuda_limits_view *view,
                             const struct gpu_interval *ran, uint64_t known_ns, uint64_t fresh_ns, uint64_t now);

/* Divisor (in 1/256) for the measured time before it is recorded as a cost. `takes_turns`: best-effort work, which
 * often runs uncrossed and is then measured exactly. */
uint32_t crossed_work_stretch_q8(uint64_t took_ns, uint64_t known_ns, bool takes_turns);

#endif
