/* A program made of words, as frameworks use a card: launches, waits and pauses, over and over.
 *
 *   core_shape <seconds> <seed> WORD...
 *
 *   k:NAME:US:STREAM   launch a kernel that fills the card; o: a small one, which others may overlap; d: with programmatic
 *                      dependent launch; c: a cooperative one
 *   m:BYTES:STREAM     copy so much to the card     r:STREAM   read eight bytes back, and wait for that
 *   s:STREAM S         wait for the stream, for the context     q:STREAM Q:STREAM   ask the stream, an event, until it is so
 *   E:STREAM           wait for an event            e:FROM:TO  the second stream waits for an event of the first
 *   w:STREAM           the stream waits for a word of memory   W:STREAM  this one writes what all that wait there wait for
 *   h:US:STREAM        a function of the host       b:US p:US  keep the host busy, sleep
 *   N{ WORDS }  N times     ?P{ WORDS }  in P of a hundred passes     1st{ WORDS }  in the first pass
 *   g:STREAM{ WORDS }  launch a graph of these kernels     t{ WORDS }  in a thread of its own     f{ WORDS }  in a child of
 *                      fork, which leaves the card alone
 *
 * US: 20, or 20/20/300 (one of them by chance), 20~1500 (between them, evenly by their logarithm), ~800 (exponential, with
 * this mean). STREAM: 0 the legacy null stream, 1 to 20 created ones that do not block, 21 to 40 blocking ones.
 *
 * Prints "ready", and begins at the time of CLOCK_MONOTONIC, in ns, that its input says. When all its work is done and has
 * been accounted for, prints "launched", that clock when the work was done, and of all kernels: how long they run, how long
 * the copies do, the longest one or graph, all in ns, and their number. Ends when its input does.
 *
 * Every 23 ms it has slept for 2 ms: Linux stops a program of real-time priority that does not.
 */
#include "core_program.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    WORDS = 512, STREAMS = 41, BLOCKING = 21, CHOICES = 8, THREADS = 16, SETTLE_MS = 100, WINDOW_US = 25000,
    REST_US = 2000, FULL = 64, SMALL = 4, RELAXED = 2, UNTIMED = 2, COPY_NS = 1000, BYTES_A_NS = 25,
};
struct duration {
    enum { ONE_OF, BETWEEN, EXPONENTIAL } kind;
    int count;
    double us[CHOICES];
};
struct word {
    char verb; /* as in the list above; 'x': N times, '?', '1' */
    int stream, other, end; /* `end`: the word behind its group's last */
    struct duration takes;
    double number;
    void *kernel, *event, *graph;
    long long ns; /* of a graph's kernels */
};
struct runner {
    pthread_t thread;
    int from, to, first;
    unsigned long long chance;
    double window_s, window_cpu_s;
};
struct attribute {
    int id, pad;
    union {
        int on;
        char room[64];
    } value;
};
struct launch_config {
    unsigned grid[3], block[3], shared;
    void *stream;
    struct attribute *attributes;
    unsigned count;
};

static struct word words[WORDS];
static int word_count, runners, children;
static struct runner runner[THREADS];
static pid_t child[THREADS];
static void *stream[STREAMS], *context, *module;
static unsigned long long memory, flag;
static unsigned flags_awaited;
static double end_s;
static long long asked_ns, copied_ns, longest_ns, launches;
static launch_fn *launch;
static int (*launch_ex)(struct launch_config *, void *, void **, void **), (*graph_launch)(void *, void *);
static int (*launch_together)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **);
static int (*synchronize)(void *), (*synchronize_all)(void), (*stream_query)(void *), (*record)(void *, void *);
static int (*event_query)(void *), (*event_synchronize)(void *), (*wait_event)(void *, void *, unsigned);
static int (*host_function)(void *, void (*)(void *), void *), (*set_current)(void *);
static int (*copy_to)(unsigned long long, const void *, size_t, void *), (*copy_back)(void *, unsigned long long, size_t, void *);
static int (*wait_value)(void *, unsigned long long, unsigned, unsigned), (*write_value)(void *, unsigned long long, unsigned, unsigned);
static int (*create_stream)(void **, unsigned), (*create_event)(void **, unsigned);
static int (*begin_capture)(void *, int), (*end_capture)(void *, void **), (*instantiate)(void **, void *, unsigned long long);

/* ---- chance, and time of the host ---- */

static double chance(struct runner *by) { /* from 0 to 1, without 1 */
    by->chance = by->chance * 6364136223846793005ull + 1442695040888963407ull;
    return (double)(by->chance >> 11) / (double)(1ull << 53);
}

static double drawn_us(const struct duration *takes, struct runner *by) {
    if (takes->kind == EXPONENTIAL)
        return -takes->us[0] * log(1 - chance(by));
    if (takes->kind == BETWEEN)
        return takes->us[0] * pow(takes->us[1] / takes->us[0], chance(by));
    return takes->us[takes->count > 1 ? (int)(chance(by) * takes->count) : 0];
}

static void sleep_us(double us) {
    nanosleep(&(struct timespec){.tv_sec = (long)(us / 1e6), .tv_nsec = (long)fmod(us * 1e3, 1e9)}, NULL);
}

static void busy_us(double us) {
    for (double until = now_s() + us * 1e-6; now_s() < until;)
        ;
}

static void host_work(void *us) {
    busy_us(*(double *)us);
}

static double cpu_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void rest(struct runner *by) {
    double now = now_s(), passed_us = (now - by->window_s) * 1e6;
    if (passed_us < WINDOW_US - REST_US)
        return;
    double slept_us = passed_us - (cpu_s() - by->window_cpu_s) * 1e6;
    if (slept_us < REST_US)
        sleep_us(REST_US - slept_us);
    by->window_s = now_s();
    by->window_cpu_s = cpu_s();
}

/* ---- reading the words ---- */

static struct duration duration_of(const char *text) {
    struct duration read = {.kind = *text == '~' ? EXPONENTIAL : strchr(text, '~') ? BETWEEN : ONE_OF};
    char *at = (char *)text - (*text != '~');
    do
        read.us[read.count++] = strtod(at + 1, &at);
    while (*at && *at != ':' && read.count < CHOICES);
    return read;
}

static int stream_of(const char *text) {
    int number = atoi(text);
    if (number < 0 || number >= STREAMS)
        exit(64);
    if (number && !stream[number])
        must(create_stream(&stream[number], number < BLOCKING), "cuStreamCreate");
    return number;
}

static void read_word(struct word *word, const char *text) {
    const char *field[4] = {text};
    char name[64];
    int fields = 1;
    for (const char *at = text; (at = strchr(at, ':')) && fields < 4; fields++)
        field[fields] = ++at;
    word->verb = *text;
    if (strchr("kodc", *text) && fields == 4) {
        snprintf(name, sizeof name, "%.*s_us", (int)(field[2] - field[1] - 1), field[1]);
        word->kernel = find_kernel(module, name);
        word->takes = duration_of(field[2]);
        word->stream = stream_of(field[3]);
    } else if (strchr("mh", *text) && fields == 3) {
        word->takes = duration_of(field[1]);
        word->stream = stream_of(field[2]);
    } else if (strchr("bp", *text) && fields == 2) {
        word->takes = duration_of(field[1]);
    } else if (strchr("sqQEregwW", *text) && fields > 1) {
        word->stream = stream_of(field[1]);
        word->other = fields > 2 ? stream_of(field[2]) : 0;
        must(create_event(&word->event, UNTIMED), "cuEventCreate");
    } else if (strcmp(text, "S") != 0) {
        fprintf(stderr, "%s: no word\n", text);
        exit(64);
    }
}

/* A word that opens a group ends in `{`. Returns the argument behind the last one that was read. */
static char **read_words(char **text, int inside) {
    for (; *text && strcmp(*text, "}") != 0; text++) {
        struct word *word = &words[word_count++];
        if (word_count == WORDS)
            exit(64);
        if (!strchr(*text, '{')) {
            read_word(word, *text);
            continue;
        }
        word->verb = **text;
        if (word->verb == 'g')
            read_word(word, *text);
        else if (strncmp(*text, "1st", 3) != 0 && strchr("0123456789", word->verb))
            word->verb = 'x';
        word->number = atof(*text + (word->verb == '?'));
        text = read_words(text + 1, 1);
        word->end = word_count;
    }
    if ((*text != NULL) != inside)
        exit(64);
    return text;
}

/* ---- running them ---- */

static void launch_kernel(struct word *word, void *on, struct runner *by) {
    unsigned us = (unsigned)fmax(1, drawn_us(&word->takes, by) + 0.5), grid = word->verb == 'o' ? SMALL : FULL;
    void *params[] = {&us};
    struct attribute dependent = {.id = 6, .value.on = 1};
    struct launch_config config = {{grid, 1, 1}, {32, 1, 1}, 0, on, &dependent, 1};
    if (word->verb == 'd')
        must(launch_ex(&config, word->kernel, params, NULL), "cuLaunchKernelEx");
    else if (word->verb == 'c')
        must(launch_together(word->kernel, grid / 4, 1, 1, 32, 1, 1, 0, on, params), "cuLaunchCooperativeKernel");
    else
        must(launch(word->kernel, grid, 1, 1, 32, 1, 1, 0, on, params, NULL), "cuLaunchKernel");
    word->ns = us * 1000ll;
}

static void ran(long long ns, long count) {
    __atomic_fetch_add(&asked_ns, ns, __ATOMIC_RELAXED);
    __atomic_fetch_add(&launches, count, __ATOMIC_RELAXED);
    for (long long most = __atomic_load_n(&longest_ns, __ATOMIC_RELAXED); ns > most;)
        if (__atomic_compare_exchange_n(&longest_ns, &most, ns, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            break;
}

static void capture(int at, struct runner *by) {
    struct word *group = &words[at];
    void *on = stream[group->stream], *graph;
    must(begin_capture(on, RELAXED), "cuStreamBeginCapture");
    for (struct word *word = group + 1; word < words + group->end; word++) {
        launch_kernel(word, on, by);
        group->ns += word->ns;
    }
    must(end_capture(on, &graph), "cuStreamEndCapture");
    must(instantiate(&group->graph, graph, 0), "cuGraphInstantiate");
    group->number = group->end - at - 1;
}

static void copy(struct word *word, void *on, size_t bytes, int back) {
    static char host[1 << 20];
    if (back)
        must(copy_back(host, memory, bytes, on), "cuMemcpyDtoHAsync");
    else
        must(copy_to(memory, host, bytes, on), "cuMemcpyHtoDAsync");
    __atomic_fetch_add(&copied_ns, COPY_NS + (long long)bytes / BYTES_A_NS, __ATOMIC_RELAXED);
    if (back)
        must(synchronize(stream[word->stream]), "cuStreamSynchronize");
}

static void run_one(struct word *word, struct runner *by) {
    void *on = stream[word->stream];
    switch (word->verb) {
    case 'k': case 'o': case 'd': case 'c':
        launch_kernel(word, on, by);
        ran(word->ns, 1);
        break;
    case 'g':
        must(graph_launch(word->graph, on), "cuGraphLaunch");
        ran(word->ns, (long)word->number);
        break;
    case 'm': case 'r':
        copy(word, on, word->verb == 'm' ? (size_t)word->takes.us[0] : 8, word->verb == 'r');
        break;
    case 'h':
        word->number = drawn_us(&word->takes, by);
        must(host_function(on, host_work, &word->number), "cuLaunchHostFunc");
        break;
    case 's':
        must(synchronize(on), "cuStreamSynchronize");
        break;
    case 'S':
        must(synchronize_all(), "cuCtxSynchronize");
        break;
    case 'q':
        while (stream_query(on))
            busy_us(1);
        break;
    case 'w':
        must(wait_value(on, flag, __atomic_add_fetch(&flags_awaited, 1, __ATOMIC_RELAXED), 0), "cuStreamWaitValue32");
        break;
    case 'W':
        must(write_value(on, flag, __atomic_load_n(&flags_awaited, __ATOMIC_RELAXED), 0), "cuStreamWriteValue32");
        break;
    case 'b':
        busy_us(drawn_us(&word->takes, by));
        break;
    case 'p':
        sleep_us(drawn_us(&word->takes, by));
        break;
    default: /* events */
        must(record(word->event, on), "cuEventRecord");
        if (word->verb == 'e')
            must(wait_event(stream[word->other], word->event, 0), "cuStreamWaitEvent");
        else if (word->verb == 'E')
            must(event_synchronize(word->event), "cuEventSynchronize");
        else
            while (event_query(word->event))
                busy_us(1);
    }
}

static void run_words(int from, int to, struct runner *by) {
    for (int at = from; at < to && now_s() < end_s;) {
        struct word *word = &words[at];
        int times = word->verb == 'x'   ? (int)word->number
                    : word->verb == '?' ? chance(by) * 100 < word->number
                    : word->verb == '1' ? by->first
                                        : 0;
        for (; times > 0 && now_s() < end_s; times--)
            run_words(at + 1, word->end, by);
        if (!word->end || word->verb == 'g')
            run_one(word, by);
        rest(by);
        at = word->end ? word->end : at + 1;
    }
}

static void *run(void *runner) {
    struct runner *by = runner;
    must(set_current(context), "cuCtxSetCurrent");
    by->window_s = now_s();
    by->window_cpu_s = cpu_s();
    for (by->first = 1; now_s() < end_s; by->first = 0)
        run_words(by->from, by->to, by);
    return NULL;
}

/* Threads and children have their groups; what follows the last of them is one more thread's. */
static void prepare(unsigned long long seed) {
    struct runner first = {.chance = seed};
    int from = 0;
    for (int at = 0; at < word_count; at++)
        if (words[at].verb == 'g')
            capture(at, &first);
    for (int at = 0; at < word_count; at++) {
        if (words[at].verb != 't' && words[at].verb != 'f')
            continue;
        if (runners == THREADS - 1 || children == THREADS)
            exit(64);
        if (words[at].verb == 't') {
            runner[runners++] = (struct runner){.from = at + 1, .to = words[at].end};
        } else if (!(child[children++] = fork())) {
            struct runner by = {.chance = seed + (unsigned)children};
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (end_s = now_s() + 3600;;)
                run_words(at + 1, words[at].end, &by);
        }
        from = at = words[at].end;
        at--;
    }
    if (from < word_count)
        runner[runners++] = (struct runner){.from = from, .to = word_count};
    for (int i = 0; i < runners; i++)
        for (runner[i].chance = seed * 2654435761u + (unsigned)i, from = 0; from < 8; from++)
            chance(&runner[i]);
}

static void find_calls(void) {
    launch = find("cuLaunchKernel");
    launch_ex = find("cuLaunchKernelEx");
    launch_together = find("cuLaunchCooperativeKernel");
    graph_launch = find("cuGraphLaunch");
    synchronize = find("cuStreamSynchronize");
    synchronize_all = find("cuCtxSynchronize");
    stream_query = find("cuStreamQuery");
    record = find("cuEventRecord");
    event_query = find("cuEventQuery");
    event_synchronize = find("cuEventSynchronize");
    wait_event = find("cuStreamWaitEvent");
    wait_value = find("cuStreamWaitValue32_v2");
    write_value = find("cuStreamWriteValue32_v2");
    host_function = find("cuLaunchHostFunc");
    set_current = find("cuCtxSetCurrent");
    copy_to = find("cuMemcpyHtoDAsync_v2");
    copy_back = find("cuMemcpyDtoHAsync_v2");
    create_stream = find("cuStreamCreate");
    create_event = find("cuEventCreate");
    begin_capture = find("cuStreamBeginCapture_v2");
    end_capture = find("cuStreamEndCapture");
    instantiate = find("cuGraphInstantiateWithFlags");
}

int main(int argc, char **argv) {
    char line[64];
    void *last;
    if (argc < 4)
        return 64;
    setvbuf(stdout, NULL, _IOLBF, 0);
    open_driver();
    context = open_card(0);
    module = load_module();
    find_calls();
    must(((int (*)(unsigned long long *, size_t))find("cuMemAlloc_v2"))(&memory, 1 << 20), "cuMemAlloc");
    must(((int (*)(unsigned long long *, size_t))find("cuMemAlloc_v2"))(&flag, 4096), "cuMemAlloc");
    must(((int (*)(unsigned long long, unsigned, size_t))find("cuMemsetD32_v2"))(flag, 0, 1024), "cuMemsetD32");
    read_words(argv + 3, 0);
    prepare(strtoull(argv[2], NULL, 10));
    printf("ready\n");
    if (!fgets(line, sizeof line, stdin))
        return 1;
    double begin_s = atof(line) * 1e-9;
    end_s = begin_s + atof(argv[1]);
    sleep_us(fmax(0, (begin_s - now_s()) * 1e6));
    for (int i = 0; i < runners; i++)
        pthread_create(&runner[i].thread, NULL, run, &runner[i]);
    for (int i = 0; i < runners; i++)
        pthread_join(runner[i].thread, NULL);
    must(create_stream(&last, 1), "cuStreamCreate"); /* what still waits for a word is let go */
    must(write_value(last, flag, flags_awaited, 0), "cuStreamWriteValue32");
    must(synchronize_all(), "cuCtxSynchronize");
    double done_s = now_s();
    for (int i = 0; i < children; i++) {
        kill(child[i], SIGKILL);
        waitpid(child[i], NULL, 0);
    }
    sleep_us(SETTLE_MS * 1000);
    printf("launched %.0f %lld %lld %lld %lld\n", done_s * 1e9, asked_ns, copied_ns, longest_ns, launches);
    getchar();
    return 0;
}
