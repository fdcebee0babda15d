/* A program that thinks between two launches, as most do: kernels of one length, a gap of the host's time after each.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "client.h"

enum { MOST_STREAMS = 16, TRACED = 4096, ALL = -1, SLEEP_SLACK_US = 150 };

/* A launch, or where `stream` is ALL a wait for the card; `length_ms` of a kernel that has ended. */
struct call {
    double at, returned;
    int stream;
    float length_ms;
    void *begin, *end;
};
struct paced {
    struct kernel kernel;
    void *stream[MOST_STREAMS];
    struct call *trace;
    double begin, gap_s, jitter;
    long launches, wait, traced, measured;
    int streams;
};

/* How long those kernels took that have ended since the last time. */
static void measure(struct paced *paced) {
    for (; paced->measured < paced->traced; paced->measured++) {
        struct call *call = &paced->trace[paced->measured];
        if (call->stream == ALL)
            continue;
        if (driver.cuEventQuery(call->end) != 0)
            return;
        must(driver.cuEventElapsedTime(&call->length_ms, call->begin, call->end), "cuEventElapsedTime");
    }
}

/* The kernel rounds short sleeps up by far more than the gaps that matter here: the last part is waited for awake. */
static void think(struct paced *paced, double seconds) {
    double until = seconds_now() + seconds, asleep = seconds - SLEEP_SLACK_US * 1e-6;
    if (asleep > SLEEP_SLACK_US * 1e-6) {
        struct timespec pause = {.tv_sec = (time_t)asleep, .tv_nsec = (long)((asleep - (double)(time_t)asleep) * 1e9)};
        nanosleep(&pause, NULL);
    }
    do
        measure(paced);
    while (seconds_now() < until);
}

static double next_gap(struct paced *paced) {
    double uniform = (double)(random() % 2001 - 1000) / 1000;
    return paced->gap_s * (1 + paced->jitter * uniform);
}

static void launch(struct paced *paced) {
    int stream = (int)(paced->launches % paced->streams);
    struct call *call = paced->trace && paced->traced < TRACED ? &paced->trace[paced->traced++] : NULL;
    if (call) {
        call->stream = stream;
        must(driver.cuEventRecord(call->begin, paced->stream[stream]), "cuEventRecord");
        call->at = seconds_now();
    }
    kernel_launch(&paced->kernel, paced->stream[stream]);
    if (call)
        must(driver.cuEventRecord(call->end, paced->stream[stream]), "cuEventRecord");
    paced->launches++;
}

static void wait_for_all(struct paced *paced) {
    double at = seconds_now();
    must(driver.cuCtxSynchronize(), "cuCtxSynchronize");
    if (paced->trace && paced->traced < TRACED)
        paced->trace[paced->traced++] = (struct call){.at = at, .returned = seconds_now(), .stream = ALL};
}

static void run(struct paced *paced, double until) {
    while (seconds_now() < until) {
        launch(paced);
        if (paced->wait && paced->launches % paced->wait == 0)
            wait_for_all(paced);
        think(paced, next_gap(paced));
    }
    must(driver.cuCtxSynchronize(), "cuCtxSynchronize");
    measure(paced);
}

static void prepare_trace(struct paced *paced) {
    paced->trace = calloc(TRACED, sizeof *paced->trace);
    must(paced->trace ? 0 : 2, "calloc");
    for (int at = 0; at < TRACED; at++) {
        must(driver.cuEventCreate(&paced->trace[at].begin, 0), "cuEventCreate");
        must(driver.cuEventCreate(&paced->trace[at].end, 0), "cuEventCreate");
    }
}

static long long since_begin_ns(const struct paced *paced, double at) {
    return (long long)((at - paced->begin) * 1e9);
}

/* As tests/data/traces/README.md describes it. A length is what lies between two events around the launch. */
static void write_trace(const struct paced *paced, const char *path, const char *origin) {
    FILE *file = fopen(path, "w");
    double end = paced->begin;
    if (!file) {
        perror(path);
        exit(1);
    }
    fprintf(file, "trace 1\norigin %s\n", origin);
    for (long at = 0; at < paced->traced; at++) {
        const struct call *call = &paced->trace[at];
        end = call->stream == ALL ? call->returned : call->at;
        if (call->stream == ALL) {
            fprintf(file, "synchronise %lld all %lld\n", since_begin_ns(paced, call->at), since_begin_ns(paced, end));
            continue;
        }
        fprintf(file, "launch %lld %d 0 %lld\n", since_begin_ns(paced, call->at), call->stream,
                (long long)((double)call->length_ms * 1e6));
    }
    fprintf(file, "end %lld\n", since_begin_ns(paced, end + paced->gap_s));
    if (fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

int run_paced(int argc, char **argv) {
    struct paced paced = {.wait = option_number(argc, argv, "--wait", 0),
                          .gap_s = (double)option_number(argc, argv, "--every", 100) * 1e-6,
                          .jitter = (double)option_number(argc, argv, "--jitter", 0) / 100,
                          .streams = (int)option_number(argc, argv, "--streams", 1)};
    const char *trace = option(argc, argv, "--trace", NULL);
    double seconds = strtod(option(argc, argv, "--seconds", "5"), NULL);
    if (paced.streams < 1 || paced.streams > MOST_STREAMS) {
        fprintf(stderr, "--streams: 1 to %d\n", MOST_STREAMS);
        return 64;
    }
    if (trace && paced.streams > 1) { /* between two events lies the wait for the other streams' kernels too */
        fprintf(stderr, "--trace goes with one stream\n");
        return 64;
    }
    kernel_load(&paced.kernel, argc, argv, 50);
    for (int at = 0; at < paced.streams; at++)
        must(driver.cuStreamCreate(&paced.stream[at], NON_BLOCKING), "cuStreamCreate");
    if (trace)
        prepare_trace(&paced);
    srandom(1);
    printf("running\n");
    paced.begin = seconds_now();
    run(&paced, paced.begin + seconds);
    double wall = seconds_now() - paced.begin, busy = (double)paced.launches * paced.kernel.us * 1e-6;
    if (trace)
        write_trace(&paced, trace, option(argc, argv, "--origin", "not told"));
    printf("kernels %ld busy %.4f wall %.4f share %.4f\n", paced.launches, busy, wall, busy / wall);
    return 0;
}
