#include "cuda/window_cap.h"
#include "lock.h"
#include "token_bucket.h"

#define WINDOW_LEAST_NS UINT64_C(10000000)
#define WINDOW_MOST_NS UINT64_C(60000000000)

static void begin(struct window_cap *cap, uint64_t step, uint64_t used, uint64_t now) {
    cap->step_ns = step;
    cap->at = cap->known_ns = now;
    cap->income_ns = 0;
    cap->left_ns = -(int64_t)used;
}

/* Between two notes what is left is taken to change evenly. */
static void note(struct window_cap *cap, uint32_t share_q8, uint64_t used, uint64_t now) {
    uint64_t step = cap->step_ns, wall = now - cap->at;
    int64_t income = cap->income_ns + (int64_t)bucket_income(wall, share_q8), left = income - (int64_t)used;
    uint64_t first = cap->at / step + 1, last = now / step;
    if (last >= first + WINDOW_CAP_MARKS)
        first = last - WINDOW_CAP_MARKS + 1;
    for (uint64_t i = first; i <= last; i++) {
        double part = (double)(i * step - cap->at) / (double)wall;
        cap->mark[i % WINDOW_CAP_MARKS] = cap->left_ns + (int64_t)(part * (double)(left - cap->left_ns));
    }
    cap->at = now;
    cap->income_ns = income;
    cap->left_ns = left;
}

/* More was used in the last window than came in: by how much, past the slack. */
static uint64_t excess(const struct window_cap *cap, uint64_t window, uint64_t now) {
    uint64_t then = now > window ? now - window : 0;
    if (then / cap->step_ns * cap->step_ns < cap->known_ns)
        return 0;
    int64_t was_left = cap->mark[then / cap->step_ns % WINDOW_CAP_MARKS];
    int64_t over = was_left - cap->left_ns - (int64_t)(window / WINDOW_CAP_SLACK_IN);
    return over > 0 ? (uint64_t)over : 0;
}

uint64_t window_cap_wait_ns(struct window_cap *cap, uint64_t window_ns, uint32_t share_q8, uint64_t used_ns,
                            uint64_t now) {
    uint64_t window = window_ns < WINDOW_LEAST_NS ? WINDOW_LEAST_NS : window_ns;
    if (window > WINDOW_MOST_NS)
        window = WINDOW_MOST_NS;
    if (!spin_try(&cap->busy))
        return 0;
    uint64_t step = window / WINDOW_CAP_STEPS, full = 0;
    if (!cap->at || cap->step_ns != step || now < cap->at) {
        begin(cap, step, used_ns, now);
    } else {
        if (now > cap->at)
            note(cap, share_q8, used_ns, now);
        full = excess(cap, window, now);
    }
    if (cap->share_q8 != share_q8 || cap->steady_since < cap->known_ns) {
        cap->share_q8 = share_q8;
        __atomic_store_n(&cap->steady_since, now, __ATOMIC_RELAXED);
    }
    spin_unlock(&cap->busy);
    uint64_t wall = full ? bucket_wall(full, share_q8) : 0;
    return wall < window ? wall : window;
}

bool window_cap_is_steady(const struct window_cap *cap, uint64_t window_ns, uint64_t now) {
    uint64_t since = __atomic_load_n(&cap->steady_since, __ATOMIC_RELAXED);
    return since && now > since && now - since > window_ns;
}
