/* Token buckets that are told by the card itself what each launch costs: they read the model's insides, which no real
 * limiter can. The wrong ones differ in one number or in what they take for the cost. */
#include "limiters_reference.h"

#include "driver.h"

#define MILLISECOND_NS 1000000u

enum cost {
    COST_NOTHING,
    COST_UNION, /* by how much the launch lengthens the time that the card is busy */
    COST_SUM,   /* the kernel's length */
    COST_SPAN,  /* the union, and pauses below 1 ms with it */
};

struct bucket {
    struct modelled_driver *driver;
    enum cost cost;
    double rate;      /* ns of the card per ns */
    double most_ns;   /* that can be saved up */
    double credit_ns; /* negative: debt */
    uint64_t refilled_at, accounted_ns;
    uint64_t union_seen_ns, sum_seen_ns, idle_seen_at; /* the card's, after the last launch */
};

static void begin(void *state, struct modelled_driver *driver, enum cost cost, double percent, double most_ns) {
    *(struct bucket *)state =
        (struct bucket){.driver = driver, .cost = cost, .rate = percent / 100.0, .most_ns = most_ns};
}

static uint64_t before(void *state, const struct launch *launch, uint64_t now) {
    (void)launch;
    struct bucket *bucket = state;
    bucket->credit_ns += (double)(now - bucket->refilled_at) * bucket->rate;
    bucket->refilled_at = now;
    if (bucket->credit_ns > bucket->most_ns)
        bucket->credit_ns = bucket->most_ns;
    return bucket->credit_ns >= 0 ? 0 : now + 1 + (uint64_t)(-bucket->credit_ns / bucket->rate);
}

static void after(void *state, const struct launch *launch, uint64_t now) {
    (void)launch;
    struct bucket *bucket = state;
    const struct card *card = &bucket->driver->card;
    uint64_t cost = 0, starts = now + card->settings.launch_latency_ns;
    if (bucket->cost == COST_SUM)
        cost = card->kernels_ns - bucket->sum_seen_ns;
    else if (bucket->cost == COST_SPAN && starts < bucket->idle_seen_at + MILLISECOND_NS)
        cost = card->idle_at - bucket->idle_seen_at;
    else if (bucket->cost != COST_NOTHING)
        cost = card->busy_total_ns - bucket->union_seen_ns;
    bucket->union_seen_ns = card->busy_total_ns;
    bucket->sum_seen_ns = card->kernels_ns;
    bucket->idle_seen_at = card->idle_at;
    bucket->accounted_ns += cost;
    bucket->credit_ns -= (double)cost;
}

static uint64_t accounted(const void *state) {
    return ((const struct bucket *)state)->accounted_ns;
}

static void begin_perfect(void *state, struct modelled_driver *driver, const struct limit *limit) {
    begin(state, driver, COST_UNION, limit->percent, 3 * MILLISECOND_NS);
}

static void begin_none(void *state, struct modelled_driver *driver, const struct limit *limit) {
    begin(state, driver, COST_NOTHING, limit->percent, 3 * MILLISECOND_NS);
}

static void begin_generous(void *state, struct modelled_driver *driver, const struct limit *limit) {
    begin(state, driver, COST_UNION, limit->percent + 2, 3 * MILLISECOND_NS);
}

static void begin_stingy(void *state, struct modelled_driver *driver, const struct limit *limit) {
    begin(state, driver, COST_UNION, limit->percent * 0.9, 3 * MILLISECOND_NS);
}

static void begin_bursting(void *state, struct modelled_driver *driver, const struct limit *limit) {
    begin(state, driver, COST_UNION, limit->percent, 50 * MILLISECOND_NS);
    ((struct bucket *)state)->credit_ns = 50 * MILLISECOND_NS;
}

static void begin_sum(void *state, struct modelled_driver *driver, const struct limit *limit) {
    begin(state, driver, COST_SUM, limit->percent, 3 * MILLISECOND_NS);
}

static void begin_span(void *state, struct modelled_driver *driver, const struct limit *limit) {
    begin(state, driver, COST_SPAN, limit->percent, 3 * MILLISECOND_NS);
}

/* Whatever keeps each window below the limit may run at once: no credit to save up, so no burst is too long that the
 * limit has room for. A millisecond is kept back for the kernel that is let go last. */
struct window {
    struct modelled_driver *driver;
    struct walk begin;
    uint64_t most_ns, length_ns;
};

static void begin_window(void *state, struct modelled_driver *driver, const struct limit *limit) {
    *(struct window *)state = (struct window){.driver = driver,
                                              .most_ns = limit->window_ns / 100 * limit->percent - MILLISECOND_NS,
                                              .length_ns = limit->window_ns};
}

static uint64_t before_window(void *state, const struct launch *launch, uint64_t now) {
    (void)launch;
    struct window *window = state;
    const struct card *card = &window->driver->card;
    uint64_t end = card->idle_at > now ? card->idle_at : now;
    uint64_t begin_at = end > window->length_ns ? end - window->length_ns : 0;
    uint64_t inside = card->busy_total_ns - card_walk_to(card, &window->begin, begin_at);
    return inside <= window->most_ns ? 0 : now + inside - window->most_ns;
}

static void after_window(void *state, const struct launch *launch, uint64_t now) {
    (void)state;
    (void)launch;
    (void)now;
}

static uint64_t accounted_window(const void *state) {
    return ((const struct window *)state)->driver->card.busy_total_ns;
}

#define BUCKET(called, starts)                                                                                         \
    {.name = (called),                                                                                                 \
     .state_bytes = sizeof(struct bucket),                                                                             \
     .begin = (starts),                                                                                                \
     .before_launch = before,                                                                                          \
     .after_launch = after,                                                                                            \
     .accounted_ns = accounted}

const struct limiter limiter_perfect = BUCKET("perfect", begin_perfect);
const struct limiter limiter_none = BUCKET("none", begin_none);
const struct limiter limiter_generous = BUCKET("generous", begin_generous);
const struct limiter limiter_stingy = BUCKET("stingy", begin_stingy);
const struct limiter limiter_bursting = BUCKET("bursting", begin_bursting);
const struct limiter limiter_sum = BUCKET("sum", begin_sum);
const struct limiter limiter_span = BUCKET("span", begin_span);
const struct limiter limiter_window = {.name = "window",
                                       .state_bytes = sizeof(struct window),
                                       .begin = begin_window,
                                       .before_launch = before_window,
                                       .after_launch = after_window,
                                       .accounted_ns = accounted_window};
