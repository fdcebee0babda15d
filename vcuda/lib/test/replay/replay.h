/* One program under one limiter on one modelled card, and what is judged of it. */
#ifndef VCUDA_REPLAY_REPLAY_H
#define VCUDA_REPLAY_REPLAY_H

#include "card.h"
#include "driver.h"
#include "limiter_under_test.h"
#include "program.h"

#define WINDOW_NS 1000000000u /* the limit holds in any window of this length */

/* The bars of docs/benchmarks: what a limiter is held to, worst over all cells. */
#define MOST_ACCOUNTED_ERROR_POINTS 2.0
#define LEAST_DELIVERED_RATIO 0.97
#define MOST_OVER_POINTS 1.0

struct settings {
    struct card_settings card;
    struct host_settings host;
    uint64_t least_ns; /* a run is at least so long, and at least 20 periods of the program */
};

struct result {
    uint64_t run_ns;         /* the host launched for so long */
    uint64_t launches;       /* of the limited program */
    double need_points;      /* share of the card's time that the program takes bare, in per cent of run_ns */
    double given_points;     /* the same under the limiter */
    double accounted_points; /* what the limiter says of all work that it let run, in per cent of the time to its end */
    double true_points;      /* what was so, of the same */
    double busiest_points;   /* the busiest window */
    double accounted_error_points; /* between accounted and true */
    double delivered_ratio;        /* given over the smaller of need and limit */
    double over_points;            /* of the busiest window over the limit; negative: below */
};

struct settings settings_defaults(void);

/* The share of run_ns, in per cent, that the program keeps the card busy with nothing in its way. */
double replay_need(const struct settings *settings, struct program program);

/* `need_points` from replay_need of the same program and settings. */
struct result replay(const struct settings *settings, struct program program, const struct limiter *limiter,
                     uint32_t limit_percent, double need_points);

bool result_holds(const struct result *result);

#endif
