/* Work for a card in the shapes that core limits are judged by. Prints, for each window, the share of it in which its
 * kernels ran, and at the end the share of the whole; a kernel counts where it was seen to be finished.
 *
 *   core_load <sync|stream|graph|bursts|threads|grows> <microseconds a kernel> <seconds> [window milliseconds] [first seconds]
 *
 * What grows begins with kernels of a tenth of that, and goes on as a stream: its data decide, the launch looks the same.
 * The windows start after the first seconds, which are not judged.
 */
#include "core_program.h"

#include <pthread.h>
#include <string.h>

enum { BURST = 30, BURST_PAUSE_MS = 40, NODES = 16, RELAXED = 2, SHORT = 40 };

static launch_fn *launch_kernel;
static int (*synchronize)(void *), (*graph_launch)(void *, void *), (*record)(void *, void *), (*wait_event)(void *);
static int (*set_current)(void *), (*create_stream)(void **, unsigned), (*create_event)(void **, unsigned);
static void *function, *context;
static unsigned data_us; /* a kernel's length where its data decide; 0: its name does */
static double length_s, window_s, begin_s, first_s, end_s;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long done, window_done, judged;
static double window_begin_s, judged_begin_s, judged_end_s;

/* `count` kernels are finished. */
static void finished(long count) {
    double now = now_s();
    pthread_mutex_lock(&lock);
    done += count;
    if (now < begin_s + first_s) {
        window_begin_s = judged_begin_s = now;
    } else {
        judged += count;
        window_done += count;
        judged_end_s = now;
        if (now - window_begin_s >= window_s) {
            printf("window %.5f %.5f\n", now, (double)window_done * length_s / (now - window_begin_s));
            window_begin_s = now;
            window_done = 0;
        }
    }
    pthread_mutex_unlock(&lock);
}

static void launch(void *stream) {
    void *params[] = {&data_us};
    must(launch_kernel(function, 64, 1, 1, 32, 1, 1, 0, stream, data_us ? params : NULL, NULL), "cuLaunchKernel");
}

static void *run_sync(void *unused) {
    void *stream;
    (void)unused;
    must(set_current(context), "cuCtxSetCurrent");
    must(create_stream(&stream, 1), "cuStreamCreate");
    while (now_s() < end_s) {
        launch(stream);
        must(synchronize(stream), "cuStreamSynchronize");
        finished(1);
    }
    return NULL;
}

/* Two batches in flight, so that the card never waits for this process. */
static void run_stream(void *stream) {
    void *event[2];
    int batch = length_s < 1e-3 ? (int)(1e-3 / length_s) : 1, turn = 0;
    for (int i = 0; i < 2; i++)
        must(create_event(&event[i], 2), "cuEventCreate");
    for (long round = 0; now_s() < end_s; round++) {
        for (int i = 0; i < batch; i++)
            launch(stream);
        must(record(event[turn], stream), "cuEventRecord");
        turn = !turn;
        if (round) {
            must(wait_event(event[turn]), "cuEventSynchronize");
            finished(batch);
        }
    }
}

static void run_grows(void *stream) {
    unsigned us = data_us;
    data_us = us / 10;
    for (int i = 0; i < SHORT; i++) {
        launch(stream);
        must(synchronize(stream), "cuStreamSynchronize");
    }
    data_us = us;
    run_stream(stream);
}

static void run_graph(void *stream) {
    void *graph, *exec;
    int (*begin)(void *, int) = find("cuStreamBeginCapture_v2");
    int (*end)(void *, void **) = find("cuStreamEndCapture");
    int (*instantiate)(void **, void *, unsigned long long) = find("cuGraphInstantiateWithFlags");
    must(begin(stream, RELAXED), "cuStreamBeginCapture");
    for (int i = 0; i < NODES; i++)
        launch(stream);
    must(end(stream, &graph), "cuStreamEndCapture");
    must(instantiate(&exec, graph, 0), "cuGraphInstantiate");
    while (now_s() < end_s) {
        must(graph_launch(exec, stream), "cuGraphLaunch");
        must(synchronize(stream), "cuStreamSynchronize");
        finished(NODES);
    }
}

static void run_bursts(void *stream) {
    struct timespec pause = {.tv_nsec = BURST_PAUSE_MS * 1000000};
    while (now_s() < end_s) {
        for (int i = 0; i < BURST; i++)
            launch(stream);
        must(synchronize(stream), "cuStreamSynchronize");
        finished(BURST);
        nanosleep(&pause, NULL);
    }
}

static void run_threads(void) {
    pthread_t thread[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&thread[i], NULL, run_sync, NULL);
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
}

int main(int argc, char **argv) {
    void *stream;
    if (argc < 4)
        return 64;
    setvbuf(stdout, NULL, _IOLBF, 0);
    length_s = atof(argv[2]) * 1e-6;
    window_s = argc > 4 ? atof(argv[4]) * 1e-3 : 1.0;
    first_s = argc > 5 ? atof(argv[5]) : 0;
    open_driver();
    launch_kernel = find("cuLaunchKernel");
    synchronize = find("cuStreamSynchronize");
    graph_launch = find("cuGraphLaunch");
    record = find("cuEventRecord");
    wait_event = find("cuEventSynchronize");
    set_current = find("cuCtxSetCurrent");
    create_stream = find("cuStreamCreate");
    create_event = find("cuEventCreate");
    context = open_card(0);
    must(create_stream(&stream, 1), "cuStreamCreate");
    void *module = load_module();
    data_us = strcmp(argv[1], "grows") ? 0 : (unsigned)atoi(argv[2]);
    function = data_us ? find_kernel(module, "spin") : find_spin(module, argv[2]);
    begin_s = judged_begin_s = judged_end_s = window_begin_s = now_s();
    end_s = begin_s + atof(argv[3]);
    printf("running\n");
    if (!strcmp(argv[1], "sync"))
        run_sync(NULL);
    else if (!strcmp(argv[1], "stream"))
        run_stream(stream);
    else if (data_us)
        run_grows(stream);
    else if (!strcmp(argv[1], "graph"))
        run_graph(stream);
    else if (!strcmp(argv[1], "bursts"))
        run_bursts(stream);
    else
        run_threads();
    double wall = judged_end_s - judged_begin_s;
    printf("share %.5f kernels %ld\n", wall > 0 ? (double)judged * length_s / wall : 0.0, done);
    return 0;
}
