/* A program that launches two kernels of one name, a short one and a longer one behind it, and then makes no call of the
 * driver for a while; again and again, after some short ones that it waits for.
 *
 *   core_pairs <created|own> <short us> <long us> <pause us> <seconds>
 *
 * On a stream that it has created, or on its thread's own null stream. Prints "launched <seconds> <pairs>" when all its
 * work has been accounted for, and ends when its input does.
 */
#include "core_program.h"

#include <string.h>

enum { SHORT = 40, SETTLE_MS = 50 };

static void pause_for(long us) {
    nanosleep(&(struct timespec){.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000}, NULL);
}

int main(int argc, char **argv) {
    void *context, *module, *kernel, *stream = NULL;
    if (argc < 6)
        return 64;
    int own = !strcmp(argv[1], "own");
    unsigned length_us;
    void *params[] = {&length_us};
    setvbuf(stdout, NULL, _IOLBF, 0);
    open_driver();
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **) =
        find(own ? "cuLaunchKernel_ptsz" : "cuLaunchKernel");
    int (*synchronize)(void *) = find(own ? "cuStreamSynchronize_ptsz" : "cuStreamSynchronize");
    must(((int (*)(unsigned))find("cuInit"))(0), "cuInit");
    must(((int (*)(void **, int))find("cuDevicePrimaryCtxRetain"))(&context, 0), "cuDevicePrimaryCtxRetain");
    must(((int (*)(void *))find("cuCtxSetCurrent"))(context), "cuCtxSetCurrent");
    if (!own)
        must(((int (*)(void **, unsigned))find("cuStreamCreate"))(&stream, 1), "cuStreamCreate");
    must(((int (*)(void **, const void *))find("cuModuleLoadData"))(&module, "\177ELF any binary"), "cuModuleLoadData");
    must(((int (*)(void **, void *, const char *))find("cuModuleGetFunction"))(&kernel, module, "spin"),
         "cuModuleGetFunction");
    for (int i = 0; i < SHORT; i++) {
        length_us = (unsigned)atoi(argv[2]);
        must(launch(kernel, 64, 1, 1, 32, 1, 1, 0, stream, params, NULL), "cuLaunchKernel");
        must(synchronize(stream), "cuStreamSynchronize");
    }
    double begin = now_s(), end = begin + atof(argv[5]);
    long pairs = 0;
    for (; now_s() < end; pairs++) {
        for (int i = 0; i < 2; i++) {
            length_us = (unsigned)atoi(argv[2 + i]);
            must(launch(kernel, 64, 1, 1, 32, 1, 1, 0, stream, params, NULL), "cuLaunchKernel");
        }
        pause_for(atol(argv[4]));
    }
    double took = now_s() - begin;
    must(synchronize(stream), "cuStreamSynchronize");
    pause_for(SETTLE_MS * 1000);
    printf("launched %.6f %ld\n", took, pairs);
    getchar();
    return 0;
}
