/* The modelled host: it works, launches, waits; and the limiter's helper beside it. */
#include "replay.h"

#include <math.h>
#include <stdlib.h>

#define LOADED 4096
#define SETTLE_NS 200000000u /* a limiter has so long, after the last kernel, to account for it */

struct run {
    struct modelled_driver driver;
    const struct limiter *limiter; /* NULL: bare */
    void *state;
    uint64_t launches;
    uint64_t random;
    uint64_t loaded[LOADED / 64]; /* functions that were launched before, a bit each */
};

struct settings settings_defaults(void) {
    return (struct settings){.card = card_defaults(), .host = host_defaults(), .least_ns = 3000000000u};
}

static uint64_t run_length(const struct settings *settings, const struct program *program) {
    uint64_t periods = 20 * program_period_ns(program);
    return periods > settings->least_ns ? periods : settings->least_ns;
}

/* Give the helper its turns up to `until`, then let the host's clock be there. */
static void pass(struct run *run, uint64_t until) {
    struct modelled_driver *driver = &run->driver;
    while (run->limiter && run->limiter->tick && driver->helper_at < until &&
           until - driver->helper_at > driver->host.wake_late_ns) {
        uint64_t wakes = driver->helper_at + driver->host.wake_late_ns;
        if (wakes > driver->now)
            driver->now = wakes;
        driver->helper_at = NEVER;
        driver->in_helper = true;
        uint64_t next = run->limiter->tick(run->state, driver->now);
        driver->in_helper = false;
        if (next <= driver->now)
            next = driver->now + 1;
        driver_wake_helper(driver, next);
    }
    if (until > driver->now)
        driver->now = until;
}

/* Ask the limiter until it lets the launch go, or time is up. */
static bool admitted(struct run *run, const struct launch *launch, uint64_t until) {
    struct modelled_driver *driver = &run->driver;
    while (run->limiter && driver->now < until) {
        uint64_t again = run->limiter->before_launch(run->state, launch, driver->now);
        if (again == 0)
            break;
        if (again > until)
            again = until;
        pass(run, (again > driver->now ? again : driver->now) + driver->host.wake_late_ns);
    }
    return driver->now < until;
}

/* What a function's first launch takes beside: the driver loads code at its first use. */
static uint64_t load(struct run *run, uint64_t function) {
    uint64_t *word = &run->loaded[function % LOADED / 64], bit = UINT64_C(1) << function % 64;
    bool is_loaded = *word & bit;
    *word |= bit;
    return is_loaded ? 0 : run->driver.host.load_ns;
}

/* What this launch's call takes. A linear congruential generator (Knuth's MMIX) is random enough. */
static uint64_t call_ns(struct run *run) {
    uint64_t ns = run->driver.host.launch_ns, reach = ns * run->driver.host.launch_varies_percent / 100;
    run->random = run->random * 6364136223846793005u + 1442695040888963407u;
    return ns - reach + (reach ? (run->random >> 33) % (2 * reach + 1) : 0);
}

static void launch_step(struct run *run, const struct step *step, uint64_t until) {
    struct modelled_driver *driver = &run->driver;
    struct launch launch = {.stream = step->stream, .function = step->function};
    if (!admitted(run, &launch, until))
        return;
    uint64_t room_at = card_takes_launch_at(&driver->card, step->stream);
    pass(run, room_at < until ? room_at : until);
    if (driver->now >= until)
        return;
    uint64_t takes = call_ns(run), before = takes * driver->host.reach_percent / 100;
    driver->now += before + load(run, step->function);
    card_submit_kernel(&driver->card, step->stream, step->length_ns, driver->now);
    driver->now += takes - before;
    run->launches++;
    if (run->limiter)
        run->limiter->after_launch(run->state, &launch, driver->now);
}

static void synchronise_step(struct run *run, const struct step *step) {
    struct modelled_driver *driver = &run->driver;
    uint64_t done = 0;
    if (run->limiter && run->limiter->before_synchronise)
        run->limiter->before_synchronise(run->state, step->stream, driver->now);
    for (uint32_t i = 0; i < CARD_STREAMS; i++)
        if ((step->stream == ALL_STREAMS || step->stream == i) && driver->card.stream[i].idle_at > done)
            done = driver->card.stream[i].idle_at;
    pass(run, (done > driver->now ? done : driver->now) + driver->host.sync_wake_ns);
    if (run->limiter && run->limiter->after_synchronise)
        run->limiter->after_synchronise(run->state, step->stream, driver->now);
}

/* A recording says when a launch was called, not when that returned: its own call is in what comes before the next. */
static uint64_t host_ns(const struct run *run, const struct program *program, const struct step *step, bool launched) {
    uint64_t call = program->trace && launched ? run->driver.host.launch_ns : 0;
    return step->gap_ns > call ? step->gap_ns - call : 0;
}

static void play(struct run *run, struct program program, uint64_t until) {
    bool launched = false;
    while (run->driver.now < until) {
        struct step step = program_next(&program);
        pass(run, run->driver.now + host_ns(run, &program, &step, launched));
        launched = step.kind == STEP_LAUNCH;
        if (run->driver.now >= until)
            break;
        if (step.kind == STEP_LAUNCH)
            launch_step(run, &step, until);
        else
            synchronise_step(run, &step);
    }
}

double replay_need(const struct settings *settings, struct program program) {
    struct run run = {.limiter = NULL};
    uint64_t until = run_length(settings, &program);
    driver_begin(&run.driver, settings->card, settings->host);
    play(&run, program, until);
    double need = 100.0 * (double)card_busy_before(&run.driver.card, until) / (double)until;
    driver_end(&run.driver);
    return need;
}

static struct result judged(const struct run *run, uint64_t run_ns, uint32_t limit_percent, double need_points) {
    const struct card *card = &run->driver.card;
    double whole = (double)(card->idle_at > run_ns ? card->idle_at : run_ns);
    double owed = need_points < limit_percent ? need_points : limit_percent;
    struct result result = {
        .run_ns = run_ns,
        .launches = run->launches,
        .need_points = need_points,
        .given_points = 100.0 * (double)card_busy_before(card, run_ns) / (double)run_ns,
        .accounted_points = 100.0 * (double)run->limiter->accounted_ns(run->state) / whole,
        .true_points = 100.0 * (double)card->busy_total_ns / whole,
        .busiest_points = 100.0 * (double)card_busiest_window(card, WINDOW_NS) / (double)WINDOW_NS,
    };
    result.accounted_error_points = fabs(result.accounted_points - result.true_points);
    result.delivered_ratio = owed > 0 ? result.given_points / owed : 1.0;
    result.over_points = result.busiest_points - limit_percent;
    return result;
}

struct result replay(const struct settings *settings, struct program program, const struct limiter *limiter,
                     uint32_t limit_percent, double need_points) {
    struct run run = {.limiter = limiter, .state = calloc(1, limiter->state_bytes + 1)};
    struct limit limit = {limit_percent, program_streams(&program), WINDOW_NS};
    uint64_t until = run_length(settings, &program);
    if (!run.state)
        abort();
    driver_begin(&run.driver, settings->card, settings->host);
    limiter->begin(run.state, &run.driver, &limit);
    play(&run, program, until);
    uint64_t idle_at = run.driver.card.idle_at > until ? run.driver.card.idle_at : until;
    pass(&run, idle_at + SETTLE_NS);
    struct result result = judged(&run, until, limit_percent, need_points);
    if (limiter->end)
        limiter->end(run.state);
    free(run.state);
    driver_end(&run.driver);
    return result;
}

bool result_holds(const struct result *result) {
    return result->accounted_error_points <= MOST_ACCOUNTED_ERROR_POINTS &&
           result->delivered_ratio >= LEAST_DELIVERED_RATIO && result->over_points <= MOST_OVER_POINTS;
}
