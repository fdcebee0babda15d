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
    pid_t victim = run_other("victim", &ready);
    must(read(ready, &byte, 1) != 1, "the victim");
    kill(victim, SIGKILL);
    waitpid(victim, NULL, 0);
    double begin = seconds();
    spin(stream, 1000, sms);
    synchronise();
    answer("waits_for_what_the_killed_had_queued", seconds() - begin > QUEUED * QUEUED_MS / 2000.0);
}

/* ---- turns of processes: one that always has work, and one that has a context and none */

enum { TURNS_KERNELS = 120, TURNS_KERNEL_US = 500, TURNS_LAUNCHED_IN_US = 200000 };
static void always_work(int ready) {
    load();
    spin(stream, TURNS_KERNEL_US, sms);
    if (write(ready, "", 1) == 1)
        for (;;)
            spin(stream, TURNS_KERNEL_US, sms); /* it waits while the queue of launches is full */
}
static void do_nothing(int ready) {
    load();
    spin(stream, TURNS_KERNEL_US, sms);
    synchronise();
    if (write(ready, "", 1) == 1)
        for (;;)
            pause();
}
static int ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}
/* Milliseconds that our kernels take in a row, behind one that gives the host time to launch them all; and in `between`
 * the median of what comes between two of them. */
static double in_a_row(float *between) {
    FIND(cuEventCreate, 2000, (void **, unsigned));
    FIND(cuEventRecord, 2000, (void *, void *));
    FIND(cuEventElapsedTime, 2000, (float *, void *, void *));
    void *event[TURNS_KERNELS + 1];
    float step, pauses[TURNS_KERNELS], all;
    int count = 0;
    spin(stream, TURNS_LAUNCHED_IN_US, sms);
    for (int at = 0; at <= TURNS_KERNELS; at++) {
        must(cuEventCreate(&event[at], 0), "cuEventCreate");
        if (at)
            spin(stream, TURNS_KERNEL_US, sms);
        must(cuEventRecord(event[at], stream), "cuEventRecord");
    }
    synchronise();
    for (int at = 0; at < TURNS_KERNELS; at++) {
        must(cuEventElapsedTime(&step, event[at], event[at + 1]), "cuEventElapsedTime");
        if (step * 1000 > 1.5 * TURNS_KERNEL_US)
            pauses[count++] = step - TURNS_KERNEL_US / 1000.0f;
    }
    qsort(pauses, (size_t)count, sizeof *pauses, ascending);
    *between = count ? pauses[count / 2] : 0;
    must(cuEventElapsedTime(&all, event[0], event[TURNS_KERNELS]), "cuEventElapsedTime");
    return all;
}
static double beside(const char *role, float *between) {
    int ready;
    char byte;
    pid_t other = run_other(role, &ready);
    must(read(ready, &byte, 1) != 1, role);
    double took = in_a_row(between);
    kill(other, SIGKILL);
    waitpid(other, NULL, 0);
    return took;
}
static void turns(void) {
    float between;
    load();
    double alone = in_a_row(&between);
    answer("beside_one_without_work_takes_as", (long long)(beside("idle", &between) / alone + 0.5));
    answer("beside_one_that_always_has_work_takes_as", (long long)(beside("busy", &between) / alone + 0.5));
    answer("turn_of_the_other_ms", (long long)(between + 0.5f));
}

static const struct question questions[] = {
    {"two_streams", two_streams},
    {"queue_of_the_killed", queue_of_the_killed},
    {"turns", turns},
};

int main(int argc, char **argv) {
    if (argc == 3) {
        int ready = atoi(argv[2]);
        prepare();
        (!strcmp(argv[1], "busy") ? always_work : !strcmp(argv[1], "idle") ? do_nothing : queue_and_wait)(ready);
        return 1;
    }
    return ask(questions, sizeof questions / sizeof *questions, argc, argv);
}
