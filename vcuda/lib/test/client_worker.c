/* A program that is started once and measured often: for each line that it reads it makes requests for a while, and
 * says how they went. A request is some kernels in a row, of lengths, names and streams that take turns, and a wait for
 * them.
 *
 *   run SECONDS RATE SEED    RATE requests a second, at random times (Poisson); RATE 0: one after another
 *
 * Its answer begins with "iterations"; lengths are milliseconds from a request's arrival to its end.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "client.h"

enum { MOST_REQUESTS = 1000000, MOST_LENGTHS = 8, MOST_WAYS = 16, WARM = 3 };

struct worker {
    struct kernel kernel;
    void *function[MOST_WAYS], *stream[MOST_WAYS];
    uint32_t us[MOST_LENGTHS];
    long lengths, names, streams, kernels, pause_us;
    double busy;
};

static void request(struct worker *worker) {
    for (long at = 0; at < worker->kernels; at++) {
        worker->kernel.us = worker->us[at % worker->lengths];
        worker->kernel.function = worker->function[at % worker->names];
        kernel_launch(&worker->kernel, worker->stream[at % worker->streams]);
        worker->busy += worker->kernel.us * 1e-6;
    }
    for (long at = 0; at < worker->streams; at++)
        must(driver.cuStreamSynchronize(worker->stream[at]), "cuStreamSynchronize");
}

static void run(struct worker *worker, double seconds, double rate) {
    static double took_ms[MOST_REQUESTS];
    double begin = seconds_now(), at = begin + (rate > 0 ? random_gap(rate) : 0);
    int count = 0;
    for (worker->busy = 0; at < begin + seconds && count < MOST_REQUESTS;) {
        if (rate > 0)
            wait_until(at);
        request(worker);
        took_ms[count++] = (seconds_now() - at) * 1e3;
        if (worker->pause_us)
            usleep((useconds_t)worker->pause_us);
        at = rate > 0 ? at + random_gap(rate) : seconds_now();
    }
    double wall = seconds_now() - begin;
    qsort(took_ms, (size_t)count, sizeof *took_ms, by_length);
    printf("iterations %d busy %.6f wall %.6f share %.6f", count, worker->busy, wall, worker->busy / wall);
    if (count)
        printf(" p50 %.4f p99 %.4f most %.4f", took_ms[count / 2], took_ms[(int)((count - 1) * 0.99 + 0.5)],
               took_ms[count - 1]);
    printf(" value %u\n", ((volatile uint32_t *)worker->kernel.out)[2]);
}

static void load(struct worker *worker, int argc, char **argv) {
    const char *text = option(argc, argv, "--us", "1000");
    char *end;
    for (; worker->lengths < MOST_LENGTHS && *text; text = *end ? end + 1 : end)
        worker->us[worker->lengths++] = (uint32_t)strtoul(text, &end, 10);
    for (long at = 0; at < worker->names; at++) { /* a module loaded again has a kernel of its own */
        kernel_load(&worker->kernel, argc, argv, 1000);
        worker->function[at] = worker->kernel.function;
    }
    for (long at = 0; at < worker->streams; at++)
        must(driver.cuStreamCreate(&worker->stream[at], NON_BLOCKING), "cuStreamCreate");
}

int run_worker(int argc, char **argv) {
    static struct worker worker;
    double seconds, rate;
    unsigned seed;
    worker.names = option_number(argc, argv, "--names", 1);
    worker.streams = option_number(argc, argv, "--streams", 1);
    worker.kernels = option_number(argc, argv, "--kernels", 1);
    worker.pause_us = option_number(argc, argv, "--pause", 0);
    if (worker.names < 1 || worker.names > MOST_WAYS || worker.streams < 1 || worker.streams > MOST_WAYS ||
        worker.kernels < 1) {
        fprintf(stderr, "--names, --streams: 1 to %d; --kernels: at least 1\n", MOST_WAYS);
        return 64;
    }
    load(&worker, argc, argv);
    for (int at = 0; at < WARM; at++)
        request(&worker);
    printf("ready\n");
    while (scanf(" run %lf %lf %u", &seconds, &rate, &seed) == 3) {
        srandom(seed);
        run(&worker, seconds, rate);
    }
    return 0;
}
