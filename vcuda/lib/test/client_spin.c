/* Keeps a card busy with kernels of a given length, and says which share of the time they ran. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"

/*
 * As much work as takes `us` microseconds: rounds that wait for one another, `per_ms` of them a millisecond. The work
 * is counted, not the time: nobody promises that the SM's clock stands still while other processes have the card. How
 * many cycles it took goes to `out`. The stand-in reads the first parameter and nothing else.
 */
#define STEP "  mad.lo.u32 %r3, %r3, %r3, %r4;\n"
#define STEPS STEP STEP STEP STEP STEP STEP STEP STEP
static const char ptx[] =
    ".version 6.3\n.target sm_70\n.address_size 64\n"
    ".visible .entry spin(.param .u32 us, .param .u32 per_ms, .param .u64 out)\n{\n"
    "  .reg .pred %p<2>;\n  .reg .b32 %r<6>;\n  .reg .b64 %rd<5>;\n"
    "  ld.param.u32 %r1, [us];\n  ld.param.u32 %r2, [per_ms];\n  ld.param.u64 %rd4, [out];\n"
    "  mul.wide.u32 %rd1, %r1, %r2;\n  div.u64 %rd1, %rd1, 1000;\n"
    "  mov.u32 %r3, %tid.x;\n  or.b32 %r4, %r3, 1;\n  mov.u64 %rd2, %clock64;\n"
    "again:\n" STEPS STEPS "  sub.s64 %rd1, %rd1, 1;\n  setp.gt.s64 %p1, %rd1, 0;\n  @%p1 bra again;\n"
    "  mov.u64 %rd3, %clock64;\n  sub.u64 %rd3, %rd3, %rd2;\n"
    "  mov.u32 %r5, %ctaid.x;\n  mov.u32 %r1, %tid.x;\n  or.b32 %r5, %r5, %r1;\n"
    "  setp.ne.u32 %p1, %r5, 0;\n  @%p1 bra done;\n"
    "  st.global.u64 [%rd4], %rd3;\n  st.global.u32 [%rd4+8], %r3;\ndone:\n  ret;\n}\n";

enum { ATTRIBUTE_CLOCK_KHZ = 13, ATTRIBUTE_SMS = 16, BATCH = 16, CAPTURE_RELAXED = 2, NO_TIMING = 2 };
enum { TRIES = 5, TRY_US = 50, CYCLES_A_ROUND = 80 };

struct spin {
    void *function, *stream, *graph, *event[2];
    uint32_t us, per_ms;
    volatile uint64_t *out; /* memory of the host */
    unsigned int grid;
    double begin, window_begin;
    long done, window_done;
    int windows;
};

static void launch(struct spin *spin) {
    void *params[] = {&spin->us, &spin->per_ms, &spin->out};
    must(driver.cuLaunchKernel(spin->function, spin->grid, 1, 1, 32, 1, 1, 0, spin->stream, params, NULL),
         "cuLaunchKernel");
}

static void count(struct spin *spin, int kernels) {
    spin->done += kernels;
    spin->window_done += kernels;
    double now = seconds_now(), wall = now - spin->window_begin;
    if (!spin->windows || wall < 1.0)
        return;
    printf("window share %.4f\n", (double)spin->window_done * spin->us * 1e-6 / wall);
    spin->window_begin = now;
    spin->window_done = 0;
}

/* How many rounds are a millisecond at the clock that the driver names. The shortest of a few: in the others somebody
 * else may have had the card. */
static void calibrate(struct spin *spin, uint64_t khz) {
    struct spin one = *spin;
    uint64_t least = 0;
    one.us = TRY_US;
    one.grid = 1;
    one.per_ms = spin->per_ms = (uint32_t)(khz / CYCLES_A_ROUND);
    for (int at = 0; at < TRIES; at++) {
        *spin->out = 0;
        launch(&one);
        must(driver.cuStreamSynchronize(spin->stream), "cuStreamSynchronize");
        least = !least || *spin->out < least ? *spin->out : least;
    }
    if (least)
        spin->per_ms = (uint32_t)(khz * ((uint64_t)one.us * one.per_ms / 1000) / least);
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
    int batch = spin->us * BATCH < 1000 ? BATCH : 1, turn = 0, flying = 0;
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
    struct spin spin = {.us = (uint32_t)option_number(argc, argv, "--us", 5000),
                        .windows = option_number(argc, argv, "--windows", 0) != 0};
    int card = (int)option_number(argc, argv, "--card", 0), value;
    double seconds = strtod(option(argc, argv, "--seconds", "5"), NULL);
    const char *mode = option(argc, argv, "--mode", "sync");
    void *module;
    use_card(card);
    must(driver.cuDeviceGetAttribute(&value, ATTRIBUTE_CLOCK_KHZ, card), "cuDeviceGetAttribute");
    uint64_t khz = (uint64_t)value;
    must(driver.cuMemHostAlloc((void **)&spin.out, 64, 0), "cuMemHostAlloc");
    must(driver.cuDeviceGetAttribute(&value, ATTRIBUTE_SMS, card), "cuDeviceGetAttribute");
    spin.grid = (unsigned int)option_number(argc, argv, "--grid", value);
    must(driver.cuModuleLoadData(&module, ptx), "cuModuleLoadData");
    must(driver.cuModuleGetFunction(&spin.function, module, "spin"), "cuModuleGetFunction");
    must(driver.cuStreamCreate(&spin.stream, 1), "cuStreamCreate");
    must(driver.cuEventCreate(&spin.event[0], NO_TIMING), "cuEventCreate");
    must(driver.cuEventCreate(&spin.event[1], NO_TIMING), "cuEventCreate");
    calibrate(&spin, khz);
    spin.begin = spin.window_begin = seconds_now();
    printf("spinning\n");
    if (strcmp(mode, "stream") == 0)
        run_stream(&spin, spin.begin + seconds);
    else if (strcmp(mode, "graph") == 0)
        run_graph(&spin, spin.begin + seconds);
    else
        run_sync(&spin, spin.begin + seconds);
    double wall = seconds_now() - spin.begin, busy = (double)spin.done * spin.us * 1e-6;
    printf("kernels %ld busy %.4f wall %.4f share %.4f\n", spin.done, busy, wall, busy / wall);
    return 0;
}
