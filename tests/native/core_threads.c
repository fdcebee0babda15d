/* Who launches: many short-lived threads, or one thread for two cards.
 *
 *   core_threads threads <kernel us> <seconds> <launches a thread>   prints "launches <a second>"
 *   core_threads cards <kernel us> <seconds> 1 <streams>             feeds cards 0 and 1 in turn, each by so many streams
 */
#include "core_program.h"

#include <pthread.h>
#include <string.h>

enum { CARDS = 2, STREAMS_MOST = 64 };

static void *context[CARDS], *function[CARDS], *stream[CARDS][STREAMS_MOST];
static launch_fn *launch_kernel;
static int (*set_current)(void *);

static void launch(int card, long on) {
    must(launch_kernel(function[card], 64, 1, 1, 32, 1, 1, 0, stream[card][on], NULL, NULL), "cuLaunchKernel");
}

static void prepare(int card, const char *kernel_us, int streams) {
    int (*create)(void **, unsigned) = find("cuStreamCreate");
    context[card] = open_card(card);
    for (int i = 0; i < streams; i++)
        must(create(&stream[card][i], 1), "cuStreamCreate");
    function[card] = find_spin(load_module(), kernel_us);
}

static void *run(void *count) {
    must(set_current(context[0]), "cuCtxSetCurrent");
    for (long i = 0; i < (long)count; i++)
        launch(0, 0);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 4 || (argc > 5 && (atoi(argv[5]) < 1 || atoi(argv[5]) > STREAMS_MOST)))
        return 64;
    int cards = !strcmp(argv[1], "cards") ? CARDS : 1, streams = argc > 5 ? atoi(argv[5]) : 1;
    long each = argc > 4 ? atol(argv[4]) : 1, launches = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    open_driver();
    launch_kernel = find("cuLaunchKernel");
    set_current = find("cuCtxSetCurrent");
    for (int card = 0; card < cards; card++)
        prepare(card, argv[2], streams);
    printf("running\n");
    double begin = now_s(), end = begin + atof(argv[3]);
    for (; now_s() < end; launches += each) {
        pthread_t thread;
        if (cards == 1) {
            must(pthread_create(&thread, NULL, run, (void *)each), "pthread_create");
            pthread_join(thread, NULL);
            continue;
        }
        for (int card = 0; card < cards; card++) {
            must(set_current(context[card]), "cuCtxSetCurrent");
            launch(card, launches % streams);
        }
    }
    printf("launches %.1f\n", (double)launches / (now_s() - begin));
    getchar();
    return 0;
}
