/* Hold a limiter to modelled programs on a modelled card, in modelled time.
 *
 *   replay LIMITER [--only TEXT] [--seed N]                             all cells (cells.h) whose name holds TEXT
 *   replay LIMITER --trace FILE [--limit PERCENT] [--side-by-side]      a recorded program
 *
 *   --worst N                how many runs to print (10), the worst first      --json
 *   --least-ms N             how long a run is at least (3000)
 *   --launch-latency-ns N    and --launch-ns, --launch-varies-percent, --reach-percent, --load-ns, --record-ns,
 * --query-ns, --sync-wake-ns,
 *                            --wake-late-ns, --host-function-ns, --resume-ns, --gap-ns: what was measured on one
 * machine (card.c, driver.c), to see what hangs on it
 *
 * It ends with 0 where every run holds the bars, 1 where one does not, 2 where it was asked for something it does not
 * have. Model, not yet a card.
 */
#define _GNU_SOURCE
#include "cells.h"
#include "limiters_reference.h"
#include "replay.h"
#include "trace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct row {
    char name[CELL_NAME + 64];
    struct result result;
};

struct options {
    const struct limiter *limiter;
    struct settings settings;
    const char *only, *trace;
    uint64_t worst, limit_percent, least_ms, seed;
    bool json, side_by_side;
};

/* How far a run lies from its bars, in bars: above 1 it breaks one. */
static double strain(const struct result *result) {
    double error = result->accounted_error_points / MOST_ACCOUNTED_ERROR_POINTS;
    double missing = (1 - result->delivered_ratio) / (1 - LEAST_DELIVERED_RATIO);
    double over = result->over_points / MOST_OVER_POINTS;
    double most = error > missing ? error : missing;
    return most > over ? most : over;
}

static int by_strain(const void *left, const void *right) {
    double a = strain(&((const struct row *)left)->result), b = strain(&((const struct row *)right)->result);
    return (a < b) - (a > b);
}

static void print_row(const struct row *row, bool json) {
    const struct result *r = &row->result;
    if (json)
        printf("{\"name\": \"%s\", \"need_points\": %.3f, \"given_points\": %.3f, \"true_points\": %.3f, "
               "\"accounted_points\": %.3f, \"accounted_error_points\": %.3f, \"delivered_ratio\": %.4f, "
               "\"over_points\": %.3f, \"launches\": %llu, \"holds\": %s}",
               row->name, r->need_points, r->given_points, r->true_points, r->accounted_points,
               r->accounted_error_points, r->delivered_ratio, r->over_points, (unsigned long long)r->launches,
               result_holds(r) ? "true" : "false");
    else
        printf("%-80s need %6.2f given %6.2f true %6.2f accounted %6.2f  error %6.2f delivered %.3f over %6.2f%s\n",
               row->name, r->need_points, r->given_points, r->true_points, r->accounted_points,
               r->accounted_error_points, r->delivered_ratio, r->over_points, result_holds(r) ? "" : "  BROKEN");
}

/* Prints what was asked for; true where every row holds. */
static bool report(struct row *rows, size_t count, const struct options *options) {
    double error = 0, delivered = 1e9, over = -100;
    size_t broken = 0;
    for (size_t i = 0; i < count; i++) {
        const struct result *r = &rows[i].result;
        error = r->accounted_error_points > error ? r->accounted_error_points : error;
        delivered = r->delivered_ratio < delivered ? r->delivered_ratio : delivered;
        over = r->over_points > over ? r->over_points : over;
        broken += !result_holds(r);
    }
    qsort(rows, count, sizeof *rows, by_strain);
    size_t shown = options->worst < count ? options->worst : count;
    if (options->json)
        printf("{\"limiter\": \"%s\", \"source\": \"model, not yet a card\", \"runs\": %zu, \"broken\": %zu, "
               "\"accounted_error_points\": %.3f, \"delivered_ratio\": %.4f, \"over_points\": %.3f, \"worst\": [",
               options->limiter->name, count, broken, error, delivered, over);
    for (size_t i = 0; i < shown; i++) {
        printf("%s", options->json && i > 0 ? ", " : "");
        print_row(&rows[i], options->json);
    }
    if (options->json)
        printf("]}\n");
    else
        printf("%s: %zu of %zu runs break a bar; worst: accounted error %.2f points (at most %.0f), delivered %.3f "
               "(at least %.2f), over %.2f points (at most %.0f). Model, not yet a card.\n",
               options->limiter->name, broken, count, error, MOST_ACCOUNTED_ERROR_POINTS, delivered,
               LEAST_DELIVERED_RATIO, over, MOST_OVER_POINTS);
    return broken == 0;
}

static int run_cells(struct options *options) {
    struct row *rows = calloc(cells_count, sizeof *rows);
    size_t count = 0, need_of = SIZE_MAX;
    double need = 0;
    if (!rows)
        return 2;
    for (size_t i = 0; i < cells_count; i++) {
        struct cell cell = cell_at(i);
        if (options->only && !strstr(cell.name, options->only))
            continue;
        struct settings settings = options->settings;
        settings.card.overlap = cell.overlap;
        cell.loop.seed = options->seed;
        struct program program = program_of_loop(cell.loop);
        if (need_of != i / 3) /* the three limits of one program follow one another */
            need = replay_need(&settings, program);
        need_of = i / 3;
        snprintf(rows[count].name, sizeof rows[count].name, "%s", cell.name);
        rows[count++].result = replay(&settings, program, options->limiter, cell.limit_percent, need);
    }
    if (count == 0)
        fprintf(stderr, "replay: no cell's name holds \"%s\"\n", options->only);
    bool holds = count > 0 && report(rows, count, options);
    free(rows);
    return count == 0 ? 2 : !holds;
}

static int run_trace(struct options *options) {
    char error[256];
    struct trace trace;
    FILE *file = fopen(options->trace, "re");
    if (!file) {
        fprintf(stderr, "replay: %s: %m\n", options->trace);
        return 2;
    }
    bool read = trace_read(file, &trace, error, sizeof error);
    fclose(file);
    if (!read) {
        fprintf(stderr, "replay: %s: %s\n", options->trace, error);
        return 2;
    }
    struct program program = program_of_trace(&trace);
    double need = replay_need(&options->settings, program);
    struct row row;
    const char *slash = strrchr(options->trace, '/');
    snprintf(row.name, sizeof row.name, "%.64s limit-%llu", slash ? slash + 1 : options->trace,
             (unsigned long long)options->limit_percent);
    row.result = replay(&options->settings, program, options->limiter, (uint32_t)options->limit_percent, need);
    fprintf(stderr, "origin: %s\n", trace.origin);
    bool holds = report(&row, 1, options);
    trace_free(&trace);
    return !holds;
}

static const struct limiter *limiter_named(const char *name) {
    for (size_t i = 0; i < limiters_count; i++)
        if (name && strcmp(limiters[i]->name, name) == 0)
            return limiters[i];
    fprintf(stderr, "replay: the first argument names the limiter:");
    for (size_t i = 0; i < limiters_count; i++)
        fprintf(stderr, " %s", limiters[i]->name);
    fprintf(stderr, "\n");
    return NULL;
}

/* `value` of an option that takes one; NULL is none. */
static bool take_option(struct options *options, const char *name, const char *value, bool *took_value) {
    struct card_settings *card = &options->settings.card;
    struct host_settings *host = &options->settings.host;
    const struct {
        const char *name;
        uint64_t *number;
        const char **text;
        bool *flag;
    } known[] = {
        {"--worst", &options->worst, NULL, NULL},
        {"--limit", &options->limit_percent, NULL, NULL},
        {"--least-ms", &options->least_ms, NULL, NULL},
        {"--seed", &options->seed, NULL, NULL},
        {"--launch-latency-ns", &card->launch_latency_ns, NULL, NULL},
        {"--launch-ns", &host->launch_ns, NULL, NULL},
        {"--gap-ns", &card->gap_ns, NULL, NULL},
        {"--launch-varies-percent", &host->launch_varies_percent, NULL, NULL},
        {"--reach-percent", &host->reach_percent, NULL, NULL},
        {"--host-function-ns", &card->host_function_ns, NULL, NULL},
        {"--resume-ns", &card->resume_ns, NULL, NULL},
        {"--load-ns", &host->load_ns, NULL, NULL},
        {"--record-ns", &host->record_ns, NULL, NULL},
        {"--query-ns", &host->query_ns, NULL, NULL},
        {"--sync-wake-ns", &host->sync_wake_ns, NULL, NULL},
        {"--wake-late-ns", &host->wake_late_ns, NULL, NULL},
        {"--only", NULL, &options->only, NULL},
        {"--trace", NULL, &options->trace, NULL},
        {"--json", NULL, NULL, &options->json},
        {"--side-by-side", NULL, NULL, &options->side_by_side},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        char *end = NULL;
        if (strcmp(name, known[i].name) != 0)
            continue;
        if (known[i].flag)
            return *known[i].flag = true;
        *took_value = true;
        if (known[i].text)
            return (*known[i].text = value) != NULL;
        errno = 0;
        *known[i].number = value ? strtoull(value, &end, 10) : 0;
        return value && value[0] >= '0' && value[0] <= '9' && *end == '\0' && errno == 0 &&
               *known[i].number <= 1000000000u;
    }
    return false;
}

int main(int argc, char **argv) {
    struct options options = {.limiter = limiter_named(argv[1]),
                              .settings = settings_defaults(),
                              .worst = 10,
                              .limit_percent = 50,
                              .least_ms = 3000};
    if (!options.limiter)
        return 2;
    for (int at = 2; at < argc; at++) {
        bool took_value = false;
        if (!take_option(&options, argv[at], argv[at + 1], &took_value)) {
            fprintf(stderr, "replay: %s %s: no such option, or not its value\n", argv[at],
                    argv[at + 1] ? argv[at + 1] : "");
            return 2;
        }
        at += took_value;
    }
    if (options.limit_percent < 1 || options.limit_percent > 100) {
        fprintf(stderr, "replay: a limit is 1 to 100 per cent\n");
        return 2;
    }
    options.settings.least_ns = options.least_ms * 1000000u;
    options.settings.card.overlap = options.side_by_side ? SIDE_BY_SIDE : ONE_AT_A_TIME;
    return options.trace ? run_trace(&options) : run_cells(&options);
}
