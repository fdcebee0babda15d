/* What the library keeps of a context, for one program on the modelled card; shared by the adapter's three parts.
 * Each part stands beside the file of src/cuda whose work it does, and has to follow when that changes. */
#ifndef VCUDA_REPLAY_ADAPTER_STATE_H
#define VCUDA_REPLAY_ADAPTER_STATE_H

#include "adapter.h"

#include "cuda/credit.h"
#include "cuda/busy_intervals.h"
#include "cuda/cost.h"
#include "cuda/gpu_time.h"
#include "cuda/known_busy.h"
#include "cuda/launch_wait.h"
#include "cuda/measuring_window.h"
#include "cuda/span_plan.h"
#include "timeline.h"
#include "token_bucket.h"

#define STREAMS 16
#define SPANS 256
#define NONE UINT32_MAX

struct span {
    uint32_t next; /* of the same stream, closed after it; or the next free one */
    uint32_t start, end;
    struct span_facts facts;
    uint64_t paid_ns;  /* taken from the bucket for its launches */
    struct cost *cost; /* of its only launch, if it is measured */
    uint32_t launches;
    bool measured, early, ends;
    uint64_t last_at, closed_at;
};

struct stream {
    struct stream_clock clock;
    uint32_t open, first, last; /* spans; first and last of those that are closed and not yet settled */
    int64_t settled_to;
    uint64_t marked_at;
};

struct adapter {
    struct modelled_driver *driver;
    struct vcuda_limits_view view;
    struct vcuda_card_usage usage;
    struct window_cap cap;
    struct measuring_window window;
    struct vcuda_timeline timeline;
    struct card_clock clock;
    struct holding_budget holding;
    struct launch_wait wait;
    struct busy_intervals busy;
    struct known_busy known;
    uint64_t run; /* tells its kinds of work from those of other runs */
    struct stream stream[STREAMS];
    struct span span[SPANS];
    uint32_t free;        /* span */
    uint32_t reference;   /* event from which the times of others are read, ... */
    int64_t reference_ns; /* ... and when it was recorded */
    bool has_reference;
    uint64_t ahead_ns;      /* paid for what is not settled yet */
    uint64_t waiting_since; /* of the launch that is not let go, else 0 */
    uint64_t call_ns;       /* the usual length of a launch call */
    uint64_t stamp_ns;      /* what a record takes of the card, from so many stamps */
    uint32_t stamps;
    bool stamp_is_exact;
    int64_t allowance_ns; /* credit that is taken already and not used up */
};

/* As timing_span.c. Take: of a launch that is about to be made, joins the stream's open span or opens one. */
void adapter_take_span(struct adapter *a, uint32_t number, struct cost *cost);
void adapter_close_span(struct adapter *a, uint32_t number);

bool adapter_is_beside(const struct adapter *a, const struct stream *stream);

/* As settle.c and span_charge.c: charges the spans that have ended by `now`. */
void adapter_settle_finished(struct adapter *a, uint64_t now);

static inline int64_t ns_of(float milliseconds) {
    return (int64_t)((double)milliseconds * 1e6);
}

#endif
