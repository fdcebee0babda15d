/* A program that launches kernels one after the other with host work between them, as a framework does in eager mode.
 *
 *   core_dispatch <kernel us> <gap us> <seconds> <regular|jittered> <streams> <synchronise every n launches, 0: never>
 *
 * A gap is the host's time from a launch's return to the next launch; jittered gaps vary evenly by 75 % to both sides,
 * and kernels by 20 %. It runs at real-time priority where it may, and rests for 2 ms in 25, since Linux stops a thread
 * of that priority that does not. Prints "running", and at the end, when all its work
 * is done and has been accounted for, the seconds that it launched for and how many launches it made.
 */
#include "core_program.h"

#include <sched.h>
#include <string.h>

enum { STREAMS = 16, LENGTHS = 9, SETTLE_MS = 50, AWAKE_US = 23000, REST_US = 2000 };

static double now_us(void) {
    return now_s() * 1e6;
}

/* Evenly from 0 to 1; the same in every run. */
static double chance(void) {
    static unsigned state = 1;
    state = state * 1664525u + 1013904223u;
    return (double)(state >> 8) / (1 << 24);
}

int main(int argc, char **argv) {
    void *stream[STREAMS], *function[LENGTHS];
    if (argc < 7)
        return 64;
    double kernel_us = atof(argv[1]), gap_us = atof(argv[2]), seconds = atof(argv[3]);
    int jittered = !strcmp(argv[4], "jittered"), streams = atoi(argv[5]), every = atoi(argv[6]);
    if (streams < 1 || streams > STREAMS)
        return 64;
    setvbuf(stdout, NULL, _IOLBF, 0);
    sched_setscheduler(0, SCHED_RR, &(struct sched_param){.sched_priority = 5});
    open_driver();
    launch_fn *launch = find("cuLaunchKernel");
    int (*synchronize)(void *) = find("cuStreamSynchronize"), (*synchronize_all)(void) = find("cuCtxSynchronize");
    open_card(0);
    for (int i = 0; i < streams; i++)
        must(((int (*)(void **, unsigned))find("cuStreamCreate"))(&stream[i], 1), "cuStreamCreate");
    void *module = load_module();
    for (int i = 0; i < LENGTHS; i++) {
        char us[16];
        snprintf(us, sizeof us, "%d", (int)(kernel_us * (0.8 + 0.05 * i) + 0.5));
        function[i] = find_spin(module, us);
    }
    printf("running\n");
    double begin = now_us(), next = begin, rested = begin;
    long launches = 0;
    for (; now_us() < begin + seconds * 1e6; launches++) {
        int length = jittered ? (int)(chance() * LENGTHS) : LENGTHS / 2;
        must(launch(function[length], 64, 1, 1, 32, 1, 1, 0, stream[launches % streams], NULL, NULL), "cuLaunchKernel");
        if (every == 1)
            must(synchronize(stream[launches % streams]), "cuStreamSynchronize");
        else if (every && launches % every == every - 1)
            must(synchronize_all(), "cuCtxSynchronize");
        next = now_us() + gap_us * (jittered ? 0.25 + 1.5 * chance() : 1);
        if (now_us() - rested > AWAKE_US || gap_us > REST_US) {
            next += gap_us > REST_US ? 0 : REST_US;
            nanosleep(&(struct timespec){.tv_nsec = (long)((next - now_us()) * 900)}, NULL);
            rested = now_us();
        }
        while (now_us() < next)
            ;
    }
    double took = now_us() - begin;
    must(synchronize_all(), "cuCtxSynchronize");
    nanosleep(&(struct timespec){.tv_nsec = SETTLE_MS * 1000000}, NULL);
    printf("launched %.6f %ld\n", took * 1e-6, launches);
    getchar();
    return 0;
}
