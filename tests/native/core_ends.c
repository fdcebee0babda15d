/* A context that ends while launches wait at its card's gate, and what another thread has meanwhile of card 1.
 *
 *   core_ends <destroy|reset|release> <launches> <kernel us>
 *
 * So many launches wait on streams of card 0 when its context is ended. Until that has returned another thread makes a
 * stream of card 1, launches a kernel of that length there, waits for it and destroys the stream, again and again.
 * Prints `longest <milliseconds of its longest call>` and `launched <its launches>`, and ends when its input does.
 */
#include "core_program.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

enum { SETTLE_MS = 50 };

struct card {
    void *context, *kernel;
};

static launch_fn *launch_kernel;
static int (*set_current)(void *), (*create)(void **, unsigned), (*destroy)(void *), (*synchronize)(void *);
static struct card first, second;
static bool over;
static double longest_s;
static long launched;

static void *launch(const struct card *card) {
    void *stream;
    must(create(&stream, 1), "cuStreamCreate");
    must(launch_kernel(card->kernel, 64, 1, 1, 32, 1, 1, 0, stream, NULL, NULL), "cuLaunchKernel");
    return stream;
}

static void *use_second(void *unused) {
    must(set_current(second.context), "cuCtxSetCurrent");
    for (double begin = now_s(); !__atomic_load_n(&over, __ATOMIC_ACQUIRE); begin = now_s()) {
        void *stream = launch(&second);
        launched++;
        must(synchronize(stream), "cuStreamSynchronize");
        must(destroy(stream), "cuStreamDestroy");
        if (now_s() - begin > longest_s)
            longest_s = now_s() - begin;
    }
    return unused;
}

int main(int argc, char **argv) {
    pthread_t thread;
    if (argc < 4)
        return 64;
    bool destroys = !strcmp(argv[1], "destroy");
    open_driver();
    launch_kernel = find("cuLaunchKernel");
    set_current = find("cuCtxSetCurrent");
    create = find("cuStreamCreate");
    destroy = find("cuStreamDestroy_v2");
    synchronize = find("cuStreamSynchronize");
    second.context = open_card(1);
    second.kernel = find_spin(load_module(), argv[3]);
    if (destroys)
        must(((int (*)(void **, unsigned, int))find("cuCtxCreate_v2"))(&first.context, 0, 0), "cuCtxCreate");
    else
        first.context = open_card(0);
    first.kernel = find_kernel(load_module(), "spin_5ms");
    must(synchronize(launch(&first)), "cuStreamSynchronize"); /* so that what it costs is known */
    for (int i = 0; i < atoi(argv[2]); i++)
        launch(&first);
    must(pthread_create(&thread, NULL, use_second, NULL), "pthread_create");
    if (destroys)
        must(((int (*)(void *))find("cuCtxDestroy_v2"))(first.context), "cuCtxDestroy");
    else
        must(((int (*)(int))find(!strcmp(argv[1], "reset") ? "cuDevicePrimaryCtxReset_v2"
                                                           : "cuDevicePrimaryCtxRelease_v2"))(0),
             argv[1]);
    __atomic_store_n(&over, true, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
    nanosleep(&(struct timespec){.tv_nsec = SETTLE_MS * 1000000}, NULL);
    printf("longest %.3f\nlaunched %ld\n", longest_s * 1e3, launched);
    fflush(stdout);
    getchar();
    return 0;
}
