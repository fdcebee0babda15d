#include "cuda/recent.h"

#include "core.h"

#define WINDOW_LEAST_NS UINT64_C(10000000)
#define WINDOW_MOST_NS UINT64_C(60000000000)

static void begin(struct recent *recent, uint64_t step, uint64_t used, uint64_t now) {
    recent->step_ns = step;
    recent->at = recent->known_ns = now;
    recent->income_ns = 0;
    recent->left_ns = -(int64_t)used;
}

/* Between two notes what is left is taken to change evenly. */
static void note(struct recent *recent, uint32_t share_q8, uint64_t used, uint64_t now) {
    uint64_t step = recent->step_ns, wall = now - recent->at;
    int64_t income = recent->income_ns + (int64_t)core_income(wall, share_q8), left = income - (int64_t)used;
    uint64_t first = recent->at / step + 1, last = now / step;
    if (last >= first + RECENT_MARKS)
        first = last - RECENT_MARKS + 1;
    for (uint64_t i = first; i <= last; i++) {
        double part = (double)(i * step - recent->at) / (double)wall;
        recent->mark[i % RECENT_MARKS] = recent->left_ns + (int64_t)(part * (double)(left - recent->left_ns));
    }
    recent->at = now;
    recent->income_ns = income;
    recent->left_ns = left;
}

/* More was used in the last window than came in: by how much, past the slack. */
static uint64_t excess(const struct recent *recent, uint64_t window, uint64_t now) {
    uint64_t then = now > window ? now - window : 0;
    if (then / recent->step_ns * recent->step_ns < recent->known_ns)
        return 0;
    int64_t was_left = recent->mark[then / recent->step_ns % RECENT_MARKS];
    int64_t over = was_left - recent->left_ns - (int64_t)(window / RECENT_SLACK_IN);
    return over > 0 ? (uint64_t)over : 0;
}

uint64_t recent_full_ns(struct recent *recent, uint64_t window_ns, uint32_t share_q8, uint64_t used_ns, uint64_t now) {
    uint64_t window = window_ns < WINDOW_LEAST_NS ? WINDOW_LEAST_NS : window_ns;
    if (window > WINDOW_MOST_NS)
        window = WINDOW_MOST_NS;
    if (__atomic_exchange_n(&recent->held, 1, __ATOMIC_ACQUIRE))
        return 0;
    uint64_t step = window / RECENT_STEPS, full = 0;
    if (!recent->at || recent->step_ns != step || now < recent->at) {
        begin(recent, step, used_ns, now);
    } else {
        if (now > recent->at)
            note(recent, share_q8, used_ns, now);
        full = excess(recent, window, now);
    }
    __atomic_store_n(&recent->held, 0, __ATOMIC_RELEASE);
    uint64_t wall = full ? core_wall(full, share_q8) : 0;
    return wall < window ? wall : window;
}
