/* Keeps a card busy with kernels of a given length, and says which share of the time they ran. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"

enum { BATCH = 16, CAPTURE_RELAXED = 2, NO_TIMING = 2 };

struct spin {
    struct kernel kernel;
    void *stream, *graph, *event[2];
    double begin, window_begin;
    long done, window_done;
    double window; /* seconds; 0: none are printed */
};

static void launch(struct spin *spin) {
    kernel_launch(&spin->kernel, spin->stream);
}

static void count(struct spin *spin, int kernels) {
    spin->done += kernels;
    spin->window_done += kernels;
    double now = seconds_now(), wall = now - spin->window_begin;
    if (spin->window == 0 || wall < spin->window)
        return;
    printf("window %.4f share %.4f\n", wall, (double)spin->window_done * spin->kernel.us * 1e-6 / wall);
    spin->window_begin = now;
    spin->window_done = 0;
}

static void run_sync(struct spin *spin, double until) {
    while (seconds_now() < until) {
        launch(spin);
        must(driver.cuStreamSynchronize(spin->stream), "cuStreamSynchronize");
        count(spin, 1);
    }
}

/* Two batches in flight: the card never waits for the host. A batch is a millisecond at most, or one kernel. */
static void run_stream(struct spin *spin, double until) {
    int batch = spin->kernel.us * BATCH < 1000 ? BATCH : 1, turn = 0, flying = 0;
    while (seconds_now() < until || flying) {
        if (seconds_now() < until && flying < 2) {
            for (int at = 0; at < batch; at++)
                launch(spin);
            must(driver.cuEventRecord(spin->event[(turn + flying) % 2], spin->stream), "cuEventRecord");
            flying++;
            continue;
        }
        must(driver.cuEventSynchronize(spin->event[turn]), "cuEventSynchronize");
        turn = (turn + 1) % 2;
        flying--;
        count(spin, batch);
    }
}

static void run_graph(struct spin *spin, double until) {
    void *graph;
    must(driver.cuStreamBeginCapture(spin->stream, CAPTURE_RELAXED), "cuStreamBeginCapture");
    for (int at = 0; at < BATCH; at++)
        launch(spin);
    must(driver.cuStreamEndCapture(spin->stream, &graph), "cuStreamEndCapture");
    must(driver.cuGraphInstantiateWithFlags(&spin->graph, graph, 0), "cuGraphInstantiateWithFlags");
    while (seconds_now() < until) {
        must(driver.cuGraphLaunch(spin->graph, spin->stream), "cuGraphLaunch");
        must(driver.cuStreamSynchronize(spin->stream), "cuStreamSynchronize");
        count(spin, BATCH);
    }
}

int run_spin(int argc, char **argv) {
    struct spin spin = {.window = strtod(option(argc, argv, "--windows", "0"), NULL)};
    double seconds = strtod(option(argc, argv, "--seconds", "5"), NULL);
    const char *mode = option(argc, argv, "--mode", "sync");
    kernel_load(&spin.kernel, argc, argv, 5000);
    must(driver.cuStreamCreate(&spin.stream, NON_BLOCKING), "cuStreamCreate");
    must(driver.cuEventCreate(&spin.event[0], NO_TIMING), "cuEventCreate");
    must(driver.cuEventCreate(&spin.event[1], NO_TIMING), "cuEventCreate");
    spin.begin = spin.window_begin = seconds_now();
    printf("running\n");
    if (strcmp(mode, "stream") == 0)
        run_stream(&spin, spin.begin + seconds);
    else if (strcmp(mode, "graph") == 0)
        run_graph(&spin, spin.begin + seconds);
    else
        run_sync(&spin, spin.begin + seconds);
    double wall = seconds_now() - spin.begin, busy = (double)spin.done * spin.kernel.us * 1e-6;
    printf("kernels %ld busy %.4f wall %.4f share %.4f\n", spin.done, busy, wall, busy / wall);
    return 0;
}
