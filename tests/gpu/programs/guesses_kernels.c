/* Kernels of several streams and processes: see guesses.h. */
#include "guesses.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ATTRIBUTE_SMS = 16, ATTRIBUTE_SHARED_OF_BLOCK = 97, FUNCTION_SHARED = 8 };

/* Runs for so many microseconds by the card's own timer. The stand-in reads the parameter and nothing else. */
static const char spin_ptx[] =
    ".version 6.3\n.target sm_70\n.address_size 64\n.visible .entry spin(.param .u32 us)\n{\n"
    "  .reg .pred %p<2>;\n  .reg .b32 %r<2>;\n  .reg .b64 %rd<4>;\n"
    "  ld.param.u32 %r1, [us];\n  mul.wide.u32 %rd1, %r1, 1000;\n  mov.u64 %rd2, %globaltimer;\n"
    "again:\n  mov.u64 %rd3, %globaltimer;\n  sub.u64 %rd3, %rd3, %rd2;\n"
    "  setp.lt.u64 %p1, %rd3, %rd1;\n  @%p1 bra again;\n  ret;\n}\n";

static void *function;
static int sms, shared_bytes;

static void load(void) {
    FIND(cuModuleLoadData, 2000, (void **, const void *));
    FIND(cuModuleGetFunction, 2000, (void **, void *, const char *));
    FIND(cuDeviceGetAttribute, 2000, (int *, int, int));
    FIND(cuFuncSetAttribute, 9000, (void *, int, int));
    void *module;
    must(cuModuleLoadData(&module, spin_ptx), "cuModuleLoadData");
    must(cuModuleGetFunction(&function, module, "spin"), "cuModuleGetFunction");
    must(cuDeviceGetAttribute(&sms, ATTRIBUTE_SMS, device), "cuDeviceGetAttribute");
    must(cuDeviceGetAttribute(&shared_bytes, ATTRIBUTE_SHARED_OF_BLOCK, device), "cuDeviceGetAttribute");
    must(cuFuncSetAttribute(function, FUNCTION_SHARED, shared_bytes), "cuFuncSetAttribute");
}

/* With all that a multiprocessor shares, a block for each of them fills the card. */
static void spin(void *on, unsigned us, int blocks) {
    FIND(cuLaunchKernel, 4000,
         (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **));
    void *parameters[] = {&us};
    must(cuLaunchKernel(function, (unsigned)blocks, 1, 1, 32, 1, 1, (unsigned)shared_bytes, on, parameters, NULL),
         "cuLaunchKernel");
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Two kernels on two streams, behind one that gives the host time to launch both: as long as one of them, or as two? */
static int lengths_of_two(void *other, int blocks) {
    enum { MS = 1000, LENGTH_MS = 50 };
    FIND(cuEventCreate, 2000, (void **, unsigned));
    FIND(cuEventRecord, 2000, (void *, void *));
    FIND(cuStreamWaitEvent, 3020, (void *, void *, unsigned));
    FIND(cuEventElapsedTime, 2000, (float *, void *, void *));
    void *begin, *end, *joined;
    float elapsed;
    must(cuEventCreate(&begin, 0) | cuEventCreate(&end, 0) | cuEventCreate(&joined, 0), "cuEventCreate");
    spin(stream, 200 * MS, 1);
    must(cuEventRecord(begin, stream), "cuEventRecord");
    must(cuStreamWaitEvent(other, begin, 0), "cuStreamWaitEvent");
    spin(stream, LENGTH_MS * MS, blocks);
    spin(other, LENGTH_MS * MS, blocks);
    must(cuEventRecord(joined, other), "cuEventRecord");
    must(cuStreamWaitEvent(stream, joined, 0), "cuStreamWaitEvent");
    must(cuEventRecord(end, stream), "cuEventRecord");
    synchronise();
    must(cuEventElapsedTime(&elapsed, begin, end), "cuEventElapsedTime");
    return (int)(elapsed / LENGTH_MS + 0.5);
}
static void two_streams(void) {
    FIND(cuStreamCreate, 2000, (void **, unsigned));
    void *other;
    load();
    must(cuStreamCreate(&other, 1), "cuStreamCreate");
    answer("two_kernels_of_one_block_take_as", lengths_of_two(other, 1));
    answer("two_kernels_that_fill_the_card_take_as", lengths_of_two(other, sms));
}

/* Does the card go through what a process had queued that was killed? */
enum { QUEUED = 40, QUEUED_MS = 100 };
static void queue_and_wait(int ready) {
    load();
    for (int at = 0; at < QUEUED; at++)
        spin(stream, QUEUED_MS * 1000, sms);
    if (write(ready, "", 1) == 1)
        for (;;)
            pause();
}
static void queue_of_the_killed(void) {
    int ready;
    char byte;
    load();
    pid_t victim = run_victim(&ready);
    must(read(ready, &byte, 1) != 1, "the victim");
    kill(victim, SIGKILL);
    waitpid(victim, NULL, 0);
    double begin = seconds();
    spin(stream, 1000, sms);
    synchronise();
    answer("waits_for_what_the_killed_had_queued", seconds() - begin > QUEUED * QUEUED_MS / 2000.0);
}

static const struct question questions[] = {
    {"two_streams", two_streams},
    {"queue_of_the_killed", queue_of_the_killed},
};

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "victim") == 0) {
        prepare();
        queue_and_wait(atoi(argv[2]));
        return 1;
    }
    return ask(questions, sizeof questions / sizeof *questions, argc, argv);
}
