/* A program whose stream waits between its kernels.
 *
 *   core_waits <function|callback|event> <kernel us> <wait us> <seconds>
 *
 * It waits for a function of the host's that sleeps, or for an event behind a kernel of that length on card 1. At most
 * so many launches are ahead of the card. Prints "launched <seconds> <launches>" when all its work has been accounted
 * for, and ends when its input does.
 */
#include "core_program.h"

#include <string.h>

enum { AHEAD = 20, SETTLE_MS = 50 };

static struct timespec pause_of_host;

static void wait_at_home(void *unused) {
    (void)unused;
    nanosleep(&pause_of_host, NULL);
}

static void call_home(void *stream, int result, void *unused) {
    (void)stream;
    (void)result;
    wait_at_home(unused);
}

struct card {
    void *context, *stream, *kernel, *event;
};

static void prepare(struct card *card, int number, const char *kernel_us) {
    card->context = open_card(number);
    must(((int (*)(void **, unsigned))find("cuStreamCreate"))(&card->stream, 1), "cuStreamCreate");
    must(((int (*)(void **, unsigned))find("cuEventCreate"))(&card->event, 2), "cuEventCreate");
    card->kernel = find_spin(load_module(), kernel_us);
}

int main(int argc, char **argv) {
    struct card card, other;
    if (argc < 5)
        return 64;
    pause_of_host.tv_nsec = atol(argv[3]) * 1000;
    setvbuf(stdout, NULL, _IOLBF, 0);
    open_driver();
    launch_fn *launch = find("cuLaunchKernel");
    int (*call_function)(void *, void *, void *) = find("cuLaunchHostFunc");
    int (*add_callback)(void *, void *, void *, unsigned) = find("cuStreamAddCallback");
    int (*record)(void *, void *) = find("cuEventRecord");
    int (*wait_event)(void *, void *, unsigned) = find("cuStreamWaitEvent");
    int (*synchronize)(void *) = find("cuStreamSynchronize");
    int (*set_current)(void *) = find("cuCtxSetCurrent");
    int event = !strcmp(argv[1], "event"), callback = !strcmp(argv[1], "callback");
    if (event)
        prepare(&other, 1, argv[3]);
    prepare(&card, 0, argv[2]);
    double begin = now_s(), end = begin + atof(argv[4]);
    long launches = 0;
    while (now_s() < end) {
        if (event) {
            must(set_current(other.context), "cuCtxSetCurrent");
            must(launch(other.kernel, 64, 1, 1, 32, 1, 1, 0, other.stream, NULL, NULL), "cuLaunchKernel");
            must(record(other.event, other.stream), "cuEventRecord");
            must(set_current(card.context), "cuCtxSetCurrent");
            must(wait_event(card.stream, other.event, 0), "cuStreamWaitEvent");
        } else if (callback) {
            must(add_callback(card.stream, (void *)call_home, NULL, 0), "cuStreamAddCallback");
        } else {
            must(call_function(card.stream, (void *)wait_at_home, NULL), "cuLaunchHostFunc");
        }
        must(launch(card.kernel, 64, 1, 1, 32, 1, 1, 0, card.stream, NULL, NULL), "cuLaunchKernel");
        if (++launches % AHEAD == 0)
            must(synchronize(card.stream), "cuStreamSynchronize");
    }
    must(synchronize(card.stream), "cuStreamSynchronize");
    double took = now_s() - begin;
    nanosleep(&(struct timespec){.tv_nsec = SETTLE_MS * 1000000}, NULL);
    printf("launched %.6f %ld\n", took, launches);
    getchar();
    return 0;
}
