/* NVIDIA's own CUDA runtime, as almost every program uses it: does it start, what does it show, what does it give?
 * Needs no header of its own; linked with the shared or with the static library.
 *
 *   runtime CARD STEP_MIB    takes memory until refused, resets the card, takes it again, and holds it until stdin ends
 */
#include <stdio.h>
#include <stdlib.h>

extern int cudaRuntimeGetVersion(int *), cudaDriverGetVersion(int *), cudaGetDeviceCount(int *), cudaSetDevice(int);
extern int cudaMemGetInfo(size_t *, size_t *), cudaMalloc(void **, size_t), cudaDeviceReset(void);

enum { OUT_OF_MEMORY = 2 };

static void must(int result, const char *what) {
    if (result == 0)
        return;
    fprintf(stderr, "%s failed with CUDA error %d\n", what, result);
    exit(result == OUT_OF_MEMORY ? 2 : 1);
}

static size_t fill(size_t step, int *result) {
    size_t held = 0;
    void *at;
    while ((*result = cudaMalloc(&at, step)) == 0)
        held += step;
    return held >> 20;
}

int main(int argc, char **argv) {
    int runtime = 0, driver = 0, count = 0, result;
    size_t step = (size_t)(argc > 2 ? atoi(argv[2]) : 16) << 20, left, total, first;
    must(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
    must(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
    must(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    must(cudaSetDevice(argc > 1 ? atoi(argv[1]) : 0), "cudaSetDevice");
    must(cudaMemGetInfo(&left, &total), "cudaMemGetInfo");
    printf("started runtime %d driver %d cards %d total_mib %zu\n", runtime, driver, count, total >> 20);
    fflush(stdout);
    first = fill(step, &result);
    must(result == OUT_OF_MEMORY ? 0 : result, "cudaMalloc");
    must(cudaDeviceReset(), "cudaDeviceReset");
    must(cudaSetDevice(argc > 1 ? atoi(argv[1]) : 0), "cudaSetDevice");
    size_t again = fill(step, &result);
    printf("held_mib %zu error %d first_mib %zu\n", again, result, first);
    fflush(stdout);
    getchar();
    return 0;
}
