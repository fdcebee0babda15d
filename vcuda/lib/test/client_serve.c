/* A service: requests arrive at random (Poisson), wait for those before them, and are some kernels in a row each. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "client.h"

enum { MOST_REQUESTS = 100000, SLEEP_SLACK_US = 150 };

double random_gap(double per_second) {
    return -log((double)(random() + 1L) / 2147483649.0) / per_second;
}

void wait_until(double at) {
    double left = at - seconds_now() - SLEEP_SLACK_US * 1e-6;
    if (left > 0)
        usleep((useconds_t)(left * 1e6));
    while (seconds_now() < at)
        ;
}

int by_length(const void *a, const void *b) {
    double first = *(const double *)a, second = *(const double *)b;
    return (first > second) - (first < second);
}

int run_serve(int argc, char **argv) {
    static double latency_ms[MOST_REQUESTS];
    long kernels = option_number(argc, argv, "--kernels", 25);
    double per_second = strtod(option(argc, argv, "--rate", "40"), NULL);
    double seconds = strtod(option(argc, argv, "--seconds", "5"), NULL);
    struct kernel kernel;
    void *stream;
    int count = 0;
    if (kernels < 1 || per_second <= 0) {
        fprintf(stderr, "--kernels: at least 1; --rate: above 0\n");
        return 64;
    }
    kernel_load(&kernel, argc, argv, 200);
    must(driver.cuStreamCreate(&stream, NON_BLOCKING), "cuStreamCreate");
    for (int i = 0; i < 3; i++) { /* what is launched for the first time costs more */
        kernel_launch(&kernel, stream);
        must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    }
    srandom(1);
    printf("running\n");
    double begin = seconds_now(), next = begin + random_gap(per_second);
    for (; count < MOST_REQUESTS && next < begin + seconds; next += random_gap(per_second)) {
        if (seconds_now() < next)
            wait_until(next);
        for (long i = 0; i < kernels; i++)
            kernel_launch(&kernel, stream);
        must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
        latency_ms[count++] = (seconds_now() - next) * 1e3;
    }
    if (!count) {
        printf("requests 0\n");
        return 0;
    }
    qsort(latency_ms, (size_t)count, sizeof *latency_ms, by_length);
    printf("requests %d p50 %.3f p99 %.3f ms\n", count, latency_ms[count / 2],
           latency_ms[(int)((double)(count - 1) * 0.99 + 0.5)]);
    return 0;
}
