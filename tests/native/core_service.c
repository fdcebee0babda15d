/* A service: requests arrive at random (Poisson), wait for those before them, and are some kernels in a row each.
 *
 *   core_service <microseconds a kernel> <kernels a request> <requests a second> <seconds> <seed> [gate]
 *
 * Prints, when it has ended, `request <seconds from the begin to its arrival> <its latency in milliseconds>` for each
 * request; a latency counts from the arrival. With a gate, `raised <microseconds>` too: from the first launch after a
 * pause of 20 ms to the moment at which the gate says that it was closed.
 */
#include "core_program.h"

#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST = 100000 };

static double arrival[MOST], latency_ms[MOST], raised_us[MOST];

static double random_gap(double per_second) {
    return -log((double)(random() + 1L) / 2147483649.0) / per_second;
}

static uint64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void wait_until(double at) {
    double left = at - now_s() - 100e-6;
    if (left > 0)
        usleep((unsigned)(left * 1e6));
    while (now_s() < at)
        ;
}

/* Word 3 of a gate: when it was last closed. */
static const volatile uint64_t *open_gate(const char *path) {
    int fd = open(path, O_RDONLY);
    void *at = fd < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        exit(4);
    return (const volatile uint64_t *)at + 3;
}

int main(int argc, char **argv) {
    if (argc < 6)
        return 64;
    void *stream;
    open_driver();
    open_card(0);
    void *function = find_spin(load_module(), argv[1]);
    setvbuf(stdout, NULL, _IOLBF, 0);
    launch_fn *launch = find("cuLaunchKernel");
    int (*synchronize)(void *) = find("cuStreamSynchronize");
    int (*create)(void **, unsigned) = find("cuStreamCreate");
    long kernels = atol(argv[2]);
    double per_second = atof(argv[3]), seconds = atof(argv[4]);
    const volatile uint64_t *closed_at = argc > 6 ? open_gate(argv[6]) : NULL;
    int count = 0, raised = 0;
    srandom((unsigned)atoi(argv[5]));
    must(create(&stream, 1), "cuStreamCreate");
    for (int i = 0; i < 3; i++) { /* what is launched for the first time costs more */
        must(launch(function, 64, 1, 1, 32, 1, 1, 0, stream, NULL, NULL), "cuLaunchKernel");
        must(synchronize(stream), "cuStreamSynchronize");
    }
    printf("running\n");
    double begin = now_s(), next = begin, last = begin;
    while (count < MOST && (next += random_gap(per_second)) < begin + seconds) {
        if (now_s() < next)
            wait_until(next);
        uint64_t launched = monotonic_ns();
        bool is_first = now_s() - last > 0.02;
        for (long i = 0; i < kernels; i++)
            must(launch(function, 64, 1, 1, 32, 1, 1, 0, stream, NULL, NULL), "cuLaunchKernel");
        must(synchronize(stream), "cuStreamSynchronize");
        last = now_s();
        if (closed_at && is_first)
            raised_us[raised++] = *closed_at > launched ? (double)(*closed_at - launched) / 1e3 : -1;
        arrival[count] = next - begin;
        latency_ms[count++] = (last - next) * 1e3;
    }
    for (int i = 0; i < count; i++)
        printf("request %.6f %.4f\n", arrival[i], latency_ms[i]);
    for (int i = 0; i < raised; i++)
        printf("raised %.1f\n", raised_us[i]);
    return 0;
}
