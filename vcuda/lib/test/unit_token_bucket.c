/* The arithmetic of credit on a clock of its own, and the words of the usage page under a modelled load. Each check
 * prints a line if it fails; the program's answer is how many did. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "token_bucket.h"
#include "cuda/account_error.h"
#include "cuda/cost.h"
#include "cuda/credit.h"
#include "cuda/window_cap.h"
#include "cuda/busy_intervals.h"
#include "check.h"

#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)
#define START (5 * SECOND)

static struct vcuda_card_limits limits_of(unsigned percent) {
    return (struct vcuda_card_limits){.core_limit_q8 = percent * 256,
                                      .core_ceiling_q8 = percent * 256,
                                      .burst_ns = 20 * MS,
                                      .debt_ns = 200 * MS,
                                      .window_ns = SECOND,
                                      .gain_q8 = 256,
                                      .co_active_q8 = 256,
                                      .mode = VCUDA_MODE_CORES_LIMITED};
}

/* ---- a card, a clock, and programs that launch kernels of one length and wait for each
 * ------------------------------- */

struct program {
    uint64_t kernel_ns, guess_ns;
    uint64_t free_ns; /* when it launches next */
    uint64_t ran_ns, longest_wait_ns, waits_since;
    uint64_t allowance_ns;
};

/* One step of a program at `now`: pays or is told when to come again. */
static void step(struct program *program, struct vcuda_card_usage *usage, const struct vcuda_card_limits *limits,
                 uint64_t now) {
    uint32_t share = limits->core_limit_q8;
    int64_t credit = bucket_refill(usage, limits, share, bucket_burst(limits, share), now);
    uint64_t cost = program->guess_ns;
    if (program->allowance_ns >= cost) {
        program->allowance_ns -= cost;
    } else {
        uint64_t slice = bucket_slice(share) > cost ? bucket_slice(share) : cost;
        uint64_t debt = bucket_debt(limits->debt_ns, usage->longest_ns);
        int64_t floor = -(int64_t)bucket_seniority(now - program->waits_since, share, debt);
        if (!bucket_take(usage, slice, floor)) {
            program->free_ns =
                now + bucket_nap(bucket_wall((uint64_t)(credit < floor ? floor - credit : 0) + 1, share));
            return;
        }
        program->allowance_ns += slice - cost;
    }
    if (now - program->waits_since > program->longest_wait_ns)
        program->longest_wait_ns = now - program->waits_since;
    bucket_note_longest(usage, program->kernel_ns);
    bucket_settle(usage, limits, program->kernel_ns, cost);
    program->guess_ns = program->kernel_ns;
    program->ran_ns += program->kernel_ns;
    program->free_ns = program->waits_since = now + program->kernel_ns;
}

/* `count` programs of one container on a card that runs all at once, until `end`. */
static void run(struct program *programs, int count, struct vcuda_card_usage *usage,
                const struct vcuda_card_limits *limits, uint64_t begin, uint64_t end) {
    for (;;) {
        int next = 0;
        for (int i = 1; i < count; i++)
            if (programs[i].free_ns < programs[next].free_ns)
                next = i;
        if (programs[next].free_ns >= end)
            return;
        step(&programs[next], usage, limits, programs[next].free_ns < begin ? begin : programs[next].free_ns);
    }
}

static struct program program_of(uint64_t kernel_ns) {
    return (struct program){
        .kernel_ns = kernel_ns, .guess_ns = BUCKET_FIRST_GUESS_NS, .free_ns = START, .waits_since = START};
}

static double percent_of(const struct program *programs, int count, uint64_t wall) {
    uint64_t sum = 0;
    for (int i = 0; i < count; i++)
        sum += programs[i].ran_ns;
    return (double)sum * 100 / (double)wall;
}

/* ---- checks
 * ---------------------------------------------------------------------------------------------------------------- */

static void every_limit_is_kept(void) {
    static const uint64_t lengths[] = {20000, 40000, 2 * MS, 5 * MS, 8 * MS, 12 * MS, 500 * MS};
    for (unsigned percent = 1; percent <= 99; percent++)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            struct vcuda_card_usage usage = {.refill_ns = START};
            struct vcuda_card_limits limits = limits_of(percent);
            struct program program = program_of(lengths[i]);
            uint64_t wall = (lengths[i] > 100 * MS ? 600 : lengths[i] < MS ? 6 : 60) * SECOND;
            run(&program, 1, &usage, &limits, START, START + wall);
            double got = percent_of(&program, 1, wall), error = got - percent;
            CHECK(error <= 0.3 && error >= -0.6, "%u %% with kernels of %" PRIu64 " us: %.2f %%", percent,
                  lengths[i] / 1000, got);
            CHECK(!usage.debt_cut_ns, "cut %" PRIu64, usage.debt_cut_ns);
        }
}

static void windows_of_a_second_are_kept(void) {
    for (unsigned percent = 10; percent <= 90; percent += 20) {
        struct vcuda_card_usage usage = {.refill_ns = START};
        struct vcuda_card_limits limits = limits_of(percent);
        struct program program = program_of(8 * MS);
        uint64_t before = 0;
        for (int second = 0; second < 30; second++) {
            run(&program, 1, &usage, &limits, START, START + (uint64_t)(second + 1) * SECOND);
            double got = (double)(program.ran_ns - before) * 100 / (double)SECOND;
            before = program.ran_ns;
            CHECK(got <= percent + 1.0, "second %d: %.2f %% of %u", second, got, percent);
        }
    }
}

static void processes_of_a_container_share_fairly(void) {
    for (unsigned percent = 5; percent <= 95; percent += 15) {
        struct vcuda_card_usage usage = {.refill_ns = START};
        struct vcuda_card_limits limits = limits_of(percent);
        struct program programs[4];
        for (int i = 0; i < 4; i++)
            programs[i] = program_of(3 * MS);
        run(programs, 4, &usage, &limits, START, START + 60 * SECOND);
        double got = percent_of(programs, 4, 60 * SECOND);
        CHECK(got <= percent + 0.3 && got >= percent - 0.6, "four at %u: %.2f", percent, got);
        for (int i = 0; i < 4; i++)
            CHECK(programs[i].ran_ns * 4 * 100 > (uint64_t)percent * 40 * SECOND, "%d of four at %u ran %" PRIu64 " ms",
                  i, percent, programs[i].ran_ns / MS);
    }
}

static void stalls_are_bounded(void) {
    for (unsigned percent = 1; percent <= 99; percent += 7)
        for (uint64_t kernel = MS; kernel <= 3000 * MS; kernel = kernel * 3 + 1) {
            struct vcuda_card_usage usage = {.refill_ns = START};
            struct vcuda_card_limits limits = limits_of(percent);
            struct program program = program_of(kernel);
            run(&program, 1, &usage, &limits, START, START + 2000 * SECOND);
            uint64_t bound = bucket_wall(bucket_debt(2 * limits.debt_ns, kernel), percent * 256) + 10 * MS;
            CHECK(program.longest_wait_ns <= bound, "%u %%, %" PRIu64 " ms: waited %" PRIu64 " of %" PRIu64 " ms",
                  percent, kernel / MS, program.longest_wait_ns / MS, bound / MS);
            CHECK(bound <= bucket_guard(bucket_debt(limits.debt_ns, kernel), percent * 256) + 10 * MS,
                  "the guard comes first");
        }
}

static void what_the_bound_forgives_is_counted(void) {
    struct vcuda_card_usage usage = {.refill_ns = START};
    struct vcuda_card_limits limits = limits_of(10);
    bucket_settle(&usage, &limits, 5 * SECOND, 50000);
    CHECK(usage.credit_ns == -(int64_t)(400 * MS), "credit %" PRId64, usage.credit_ns);
    CHECK(usage.debt_cut_ns == 5 * SECOND - 50000 - 400 * MS, "cut %" PRIu64, usage.debt_cut_ns);
    CHECK(usage.busy_ns == 5 * SECOND, "busy %" PRIu64, usage.busy_ns);
}

static void idling_saves_up_a_burst_and_no_more(void) {
    struct vcuda_card_usage usage = {.refill_ns = START};
    struct vcuda_card_limits limits = limits_of(50);
    CHECK(bucket_refill(&usage, &limits, 50 * 256, 20 * MS, START + 3600 * SECOND) == (int64_t)(20 * MS),
          "after an hour");
    bucket_settle(&usage, &limits, 0, 10 * SECOND);
    CHECK(usage.credit_ns == (int64_t)(20 * MS), "paid back: %" PRId64, usage.credit_ns);
}

static void time_that_jumps_gives_nothing_away(void) {
    struct vcuda_card_limits limits = limits_of(50);
    struct vcuda_card_usage ahead = {.refill_ns = START + 1000 * SECOND};
    CHECK(bucket_refill(&ahead, &limits, 50 * 256, 20 * MS, START) == 0, "a stamp of the future");
    CHECK(bucket_refill(&ahead, &limits, 50 * 256, 20 * MS, START + MS) == (int64_t)(MS / 2), "and then goes on");
    struct vcuda_card_usage fresh = {0};
    CHECK(bucket_refill(&fresh, &limits, 50 * 256, 20 * MS, START) == 0, "a new page has no credit");
    struct vcuda_card_usage wild = {.refill_ns = START, .credit_ns = INT64_MIN, .longest_ns = UINT64_MAX};
    CHECK(bucket_refill(&wild, &limits, 50 * 256, 20 * MS, START + MS) >= -(int64_t)(3 * SECOND),
          "a word of garbage is bounded");
    wild.credit_ns = INT64_MAX;
    wild.refill_ns = START;
    CHECK(bucket_refill(&wild, &limits, 50 * 256, 20 * MS, START + MS) <= (int64_t)(20 * MS), "from above too");
}

static void the_share_in_force(void) {
    struct vcuda_limits_view view = {.card_count = 1, .heartbeat_ns = START, .flags = VCUDA_FLAG_ELASTIC};
    view.card[0] = limits_of(30);
    view.card[0].core_ceiling_q8 = 80 * 256;
    CHECK(bucket_share(&view, 0, START) == 80 * 256, "alone: the ceiling");
    CHECK(bucket_share(&view, 0, START + 4 * SECOND) == 80 * 256, "between heartbeats");
    CHECK(bucket_share(&view, 0, START + 6 * SECOND) == 30 * 256, "without a host the limit");
    view.card[0].co_active_q8 = 300;
    CHECK(bucket_share(&view, 0, START) == 30 * 256, "with others the limit");
    view.card[0].co_active_q8 = 256;
    view.flags = 0;
    CHECK(bucket_share(&view, 0, START) == 30 * 256, "hard");
    view.card[0].core_limit_q8 = 0;
    CHECK(bucket_share(&view, 0, START) == 1, "nothing is next to nothing, not a division by zero");
    view.card[0].co_active_q8 = 512;
    CHECK(bucket_sharers(&view, 0, START + 10 * SECOND) == 512, "a host that restarts is not missed");
    CHECK(bucket_sharers(&view, 0, START + 100 * SECOND) == 256, "a factor does not outlive its host for ever");
    CHECK(!bucket_is_silent(&view, START + 2 * SECOND) && bucket_is_silent(&view, START + 3 * SECOND), "silence");
    view.heartbeat_ns = 0;
    CHECK(!bucket_is_silent(&view, START) && bucket_sharers(&view, 0, START) == 512, "no heartbeat yet");
    view.card[0].co_active_q8 = 1;
    CHECK(bucket_sharers(&view, 0, START) == 256, "never below one");
}

static void measured_time_is_divided_and_corrected(void) {
    CHECK(bucket_used(10 * MS, 512, 256) == 5 * MS, "two");
    CHECK(bucket_used(10 * MS, 256, 128) == 5 * MS, "gain of a half");
    CHECK(bucket_used(10 * MS, 0, 0) == 10 * MS, "unset");
    CHECK(bucket_used(UINT64_MAX, 256, 512) > 0, "no overflow");
    CHECK(bucket_stretch(6 * MS, 4 * MS, 512) == 384, "half as long again");
    CHECK(bucket_stretch(3 * MS, 4 * MS, 512) == 256, "never below one");
    CHECK(bucket_stretch(40 * MS, 4 * MS, 512) == 512 && bucket_stretch(MS, 0, 512) == 512, "no more than was told");
    CHECK(bucket_stretch(UINT64_MAX, 1, UINT32_MAX) == UINT32_MAX && bucket_stretch(MS, MS, 0) == 256, "no overflow");
}

static void slices_and_naps(void) {
    CHECK(bucket_seniority(0, 25600, SECOND) == 0 && bucket_seniority(SECOND, 12800, 200 * MS) == 25 * MS, "seniority");
    CHECK(bucket_slice(100 * 256) == MS && bucket_slice(256) == BUCKET_FIRST_GUESS_NS, "slices");
    CHECK(bucket_nap(1) == BUCKET_NAP_LEAST_NS && bucket_nap(UINT64_MAX) == BUCKET_NAP_MOST_NS && bucket_nap(MS) == MS,
          "naps");
    CHECK(bucket_ahead(0) == 10 * MS && bucket_ahead(50 * MS) == 100 * MS && bucket_ahead(UINT64_MAX) == 4 * SECOND,
          "ahead");
    CHECK(bucket_debt(200 * MS, 0) == 200 * MS && bucket_debt(200 * MS, 500 * MS) == 750 * MS &&
              bucket_debt(200 * MS, UINT64_MAX) == 2 * SECOND,
          "debt");
    for (uint32_t share = 1; share <= 25600; share += 37)
        CHECK(bucket_income(bucket_wall(MS, share), share) >= MS, "waiting long enough at %u", share);
}

static void who_asks_once_is_told_of_the_last_second(void) {
    struct vcuda_card_usage usage = {0};
    uint64_t now = START;
    for (int i = 0; i < 400; i++, now += 25 * MS) {
        bucket_note_window(&usage, 10 * MS, now); /* 40 % */
        uint64_t age = now - usage.window_start_ns;
        if (i > 40) {
            CHECK(age >= 400 * MS && age <= SECOND + 25 * MS, "the window is %" PRIu64 " ns long", age);
            CHECK(usage.window_busy_ns * 100 >= 37 * age && usage.window_busy_ns * 100 <= 44 * age,
                  "%" PRIu64 " of %" PRIu64, usage.window_busy_ns, age);
        }
    }
    now += 10 * SECOND;
    bucket_note_window(&usage, 5 * MS, now);
    CHECK(usage.window_busy_ns == 5 * MS && now - usage.window_start_ns == 5 * MS, "after a pause it begins anew");
    usage.window_start_ns = UINT64_MAX; /* garbage of a tenant's */
    usage.window_busy_ns = UINT64_MAX;
    bucket_note_window(&usage, 5 * MS, now);
    CHECK(usage.window_busy_ns == 5 * MS && now - usage.window_start_ns == 5 * MS, "garbage is forgotten");
}

/* ---- the last window
 * ----------------------------------------------------------------------------------------------------- */

enum { STEPS = 20000 }; /* of a millisecond */

/* A program that launches `burst` kernels of a millisecond, one after the other as it is let, and pauses for `pause`
 * ms. Returns what it got, and writes which milliseconds it ran. */
static double burst(unsigned percent, int burst, int pause, char ran[STEPS]) {
    struct vcuda_card_usage usage = {.refill_ns = START};
    struct vcuda_limits_view view = {.card_count = 1, .card = {limits_of(percent)}};
    static struct window_cap recent;
    int done = 0, sum = 0;
    memset(&recent, 0, sizeof recent);
    for (int at = 0; at < STEPS; at++) {
        uint64_t taken;
        struct credit credit = {.usage = &usage, .view = &view, .cap = &recent, .now = START + (uint64_t)at * MS};
        ran[at] = !credit_take_ns(&credit, MS, &taken);
        if (ran[at]) {
            bucket_settle(&usage, &view.card[0], MS, MS);
            done++;
            sum++;
        }
        if (done == burst) {
            done = 0;
            for (int i = 0; i < pause && at + 1 < STEPS; i++)
                ran[++at] = 0;
        }
    }
    return (double)sum * 100 / STEPS;
}

static void no_second_is_fuller_than_the_share_whatever_a_pause_saved_up(void) {
    static char ran[STEPS];
    for (unsigned percent = 10; percent <= 90; percent += 10)
        for (int pause = 10; pause <= 90; pause += 5)
            for (int length = 10; length <= 130; length += 20) {
                double got = burst(percent, length, pause, ran), asked = 100.0 * length / (length + pause);
                int sum = 0, most = 0;
                for (int at = 2000; at < STEPS; at++) {
                    sum += ran[at] - (at >= 3000 ? ran[at - 1000] : 0);
                    most = sum > most ? sum : most;
                }
                CHECK(most <= (int)percent * 10 + 9, "%u %%, %d ms and %d ms of pause: a second of %d ms", percent,
                      length, pause, most);
                /* Pauses do not fall evenly into seconds: what is asked for beyond the share is not all had. */
                if (asked > percent || asked < 0.8 * percent)
                    CHECK(got >= (asked > percent ? 0.93 * percent : 0.99 * asked),
                          "%u %%, %d ms and %d ms of pause: %.2f %%", percent, length, pause, got);
            }
}

/* What a container may use at once after it has kept asking and been idle for a second. */
static uint64_t saved_up(struct vcuda_limits_view *view, unsigned percent_before, unsigned percent) {
    struct vcuda_card_usage usage = {.refill_ns = START};
    static struct window_cap recent;
    uint64_t taken, at = 0;
    struct credit credit = {.usage = &usage, .view = view, .cap = &recent};
    memset(&recent, 0, sizeof recent);
    view->card[0].core_limit_q8 = percent_before * 256;
    for (; at < 2000 * MS; at += 100 * MS) {
        credit.now = START + at;
        credit_take_ns(&credit, MS, &taken);
    }
    view->card[0].core_limit_q8 = percent * 256;
    credit.now = START + 3 * SECOND;
    while (usage.busy_ns < SECOND && !credit_take_ns(&credit, MS, &taken))
        bucket_settle(&usage, &view->card[0], taken, taken);
    return usage.busy_ns;
}

static void a_pause_saves_up_what_the_last_second_has_room_for(void) {
    struct vcuda_limits_view view = {.card_count = 1, .card = {limits_of(50)}};
    uint64_t alone = saved_up(&view, 50, 50), lowered = saved_up(&view, 99, 50);
    CHECK(alone >= 199 * MS && alone <= 202 * MS, "a pause at 50 %% saved up %" PRIu64 " us", alone / 1000);
    CHECK(lowered >= 20 * MS && lowered <= 22 * MS, "under another limit: %" PRIu64 " us", lowered / 1000);
    view.card[0].co_active_q8 = 512;
    uint64_t shared = saved_up(&view, 50, 50);
    CHECK(shared >= 20 * MS && shared <= 22 * MS, "beside others: %" PRIu64 " us", shared / 1000);
}

static void a_second_that_was_too_full_ends(void) {
    static struct window_cap recent;
    uint64_t used = 0, now = START;
    for (; now < START + 3 * SECOND; now += MS) /* nobody asks it: all of the card's time is used */
        window_cap_wait_ns(&recent, SECOND, 10 * 256, used += MS, now);
    uint64_t wall = window_cap_wait_ns(&recent, SECOND, 10 * 256, used, now), end = now + SECOND;
    CHECK(wall > 0 && wall <= SECOND, "too full: %" PRIu64, wall);
    while (window_cap_wait_ns(&recent, SECOND, 10 * 256, used, now) && now <= end)
        now += MS;
    CHECK(now > START + 3 * SECOND + 800 * MS && now <= end, "it ended after %" PRIu64 " ms",
          (now - START) / MS - 3000);
    CHECK(!window_cap_wait_ns(&recent, SECOND, 10 * 256, 5, now), "a word that falls back holds nobody");
    CHECK(!window_cap_wait_ns(&recent, SECOND, 10 * 256, 5, START), "nor does a clock");
    window_cap_wait_ns(&recent, SECOND, 10 * 256, UINT64_MAX / 2, START + MS);
    CHECK(window_cap_wait_ns(&recent, SECOND, 10 * 256, UINT64_MAX / 2, START + 2 * MS) <= SECOND,
          "nor garbage for ever");
    CHECK(!window_cap_wait_ns(&recent, 0, 10 * 256, 5, START + 3 * MS), "nor a window that is none");
}

static void a_limit_that_changes_is_no_debt(void) {
    static struct window_cap recent;
    uint64_t used = 0, now = START;
    for (; now < START + 3 * SECOND; now += MS)
        window_cap_wait_ns(&recent, SECOND, 100 * 256, used += MS, now);
    CHECK(!window_cap_wait_ns(&recent, SECOND, 256, used, now), "what was allowed is not held against it");
    CHECK(!window_cap_wait_ns(&recent, SECOND, 256, used, now + 10 * SECOND), "nor after a pause");
}

/* ---- spans and costs
 * --------------------------------------------------------------------------------------------------------- */

static void busy_intervals_are_a_union(void) {
    unsigned seed = 7;
    for (int round = 0; round < 300; round++) {
        static struct busy_intervals busy;
        char covered[2000] = {0};
        busy.count = 0;
        for (int i = 0; i < 60; i++) {
            int from = rand_r(&seed) % 1900, to = from + rand_r(&seed) % (rand_r(&seed) % 2 ? 100 : 6);
            int64_t expected = 0, got = busy_intervals_add(&busy, from, to);
            for (int at = from; at < to; at++)
                if (!covered[at])
                    covered[at] = 1, expected++;
            CHECK(got == expected, "round %d: [%d, %d) %" PRId64 " not %" PRId64, round, from, to, got, expected);
        }
        for (unsigned i = 1; i < busy.count; i++)
            CHECK(busy.interval[i - 1].to < busy.interval[i].from, "round %d: out of order", round);
    }
}

static void too_many_intervals_never_count_twice(void) {
    static struct busy_intervals busy;
    int64_t sum = 0;
    for (int64_t at = 0; at < 100000; at += 10)
        sum += busy_intervals_add(&busy, at, at + 4);
    CHECK(sum == 40000 && busy.count <= BUSY_INTERVALS_MOST, "sum %" PRId64, sum);
    CHECK(busy_intervals_add(&busy, 0, 100000) <= 60000,
          "a long piece that ends last counts the gaps that are remembered");
    CHECK(busy_intervals_add(&busy, 5, 50) == 0 && busy_intervals_add(&busy, 7, 7) == 0 &&
              busy_intervals_add(&busy, 9, 3) == 0,
          "nothing new");
}

static void costs_follow_what_is_measured(void) {
    struct cost *cost = cost_find(cost_key(&failures, 64));
    CHECK(cost_ns(cost) == BUCKET_FIRST_GUESS_NS && !cost_seen(cost), "first sight");
    cost_measured(cost, 8 * MS, 8 * MS);
    CHECK(cost_ns(cost) == 8 * MS, "the first measurement counts whole");
    for (int i = 0; i < 40; i++)
        cost_measured(cost, 4 * MS, 4 * MS);
    CHECK(cost_ns(cost) < 4 * MS + 1000, "and later ones move it: %" PRIu64, cost_ns(cost));
    CHECK(cost_find(cost_key(&failures, 100)) == cost && cost_find(cost_key(&failures, 128)) != cost, "powers of two");
    cost_measured(cost, 0, 0);
    for (int i = 0; i < 200; i++)
        cost_measured(cost, 0, 0);
    CHECK(cost_ns(cost) >= 1, "never nothing");
    for (int i = 0; i < 20; i++)
        cost_measured(cost, 2000, 2000);
    CHECK(cost_ns(cost) > 1900 && cost_charge_ns(cost) > 1900, "what took no time once does so no longer: %" PRIu64,
          cost_ns(cost));
    for (uintptr_t i = 1; i < 5000; i++)
        cost_measured(cost_find(cost_key((void *)(i * 4096), 1)), i, i);
    CHECK(cost_find(cost_key((void *)(uintptr_t)4096, 1)) != NULL, "a full table still answers");
}

static void measure(struct cost *cost, uint64_t ns) {
    account_error_measured(cost, ns);
    cost_measured(cost, ns, ns);
}

static void what_means_leave_open_is_told(void) {
    static struct vcuda_card_usage card;
    struct cost *cost = cost_find(cost_key(&failures, 1 << 20));
    for (int i = 0; i < 100; i++)
        measure(cost, 10000);
    account_error_tallied(&card, cost, 3 * MS);
    account_error_tallied(&card, cost, 2 * MS);
    CHECK(card.error_us2 == 0, "nothing was measured since");
    measure(cost, 5000);
    measure(cost, 15000);
    account_error_tallied(&card, cost, MS);
    CHECK(card.error_us2 == 0, "two launches of one window show what they are together");
    measure(cost, 20000);
    account_error_tallied(&card, cost, 0);
    CHECK(card.error_us2 > 900u * 900u && card.error_us2 < 1100u * 1100u,
          "a hundred launches were charged, and each may have taken 10 us more: %" PRIu64, card.error_us2);
    card.error_us2 = 0;
    account_error_tallied(&card, cost, UINT64_MAX / 2);
    measure(cost, MS);
    account_error_tallied(&card, cost, 0);
    CHECK(card.error_us2 == UINT64_C(1000000000000), "bounded: %" PRIu64, card.error_us2);
}

int main(void) {
    every_limit_is_kept();
    windows_of_a_second_are_kept();
    processes_of_a_container_share_fairly();
    stalls_are_bounded();
    what_the_bound_forgives_is_counted();
    idling_saves_up_a_burst_and_no_more();
    time_that_jumps_gives_nothing_away();
    the_share_in_force();
    what_means_leave_open_is_told();
    measured_time_is_divided_and_corrected();
    slices_and_naps();
    who_asks_once_is_told_of_the_last_second();
    no_second_is_fuller_than_the_share_whatever_a_pause_saved_up();
    a_pause_saves_up_what_the_last_second_has_room_for();
    a_second_that_was_too_full_ends();
    a_limit_that_changes_is_no_debt();
    busy_intervals_are_a_union();
    too_many_intervals_never_count_twice();
    costs_follow_what_is_measured();
    return checked();
}
