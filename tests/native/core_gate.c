/* Launches at a gate, seen from inside the program.
 *
 *   core_gate <calls|threads|capture|destroy|cancel|fork> <microseconds a kernel>
 * <seconds>
 *
 * calls: launches on one stream and never waits, until it ends; prints the
 * longest call that began in the first 0.6 s. threads: as many as THREADS
 * launch once each on streams of their own, then wait for them; prints the
 * longest launch. capture: launches on one stream while another is being
 * captured, then instantiates what was captured; prints the same. destroy:
 * launches again and again on a stream that it destroys at once, then waits for
 * the card. cancel: cancels a thread that launches, which the driver's call lets
 * happen after it. fork: launches, has a child that ends, and waits for the card.
 * Prints `longest <milliseconds>` and `ran <seconds that it took to see all
 * work ended>`.
 */
#include "core_program.h"

#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 24, GLOBAL = 0 };

static launch_fn *launch_kernel;
static int (*create)(void **, unsigned), (*destroy)(void *),
    (*set_current)(void *), (*synchronize_all)(void);
static void *function, *context;
static double longest_s[THREADS];

static void launch(void *stream, int who) {
  double begin = now_s();
  must(launch_kernel(function, 64, 1, 1, 32, 1, 1, 0, stream, NULL, NULL),
       "cuLaunchKernel");
  if (now_s() - begin > longest_s[who])
    longest_s[who] = now_s() - begin;
}

static void *new_stream(void) {
  void *stream;
  must(create(&stream, 1), "cuStreamCreate");
  return stream;
}

static void calls(double seconds) {
  void *stream = new_stream();
  for (double begin = now_s(); now_s() < begin + seconds;)
    launch(stream, now_s() < begin + 0.6 ? 0 : 1);
  longest_s[1] = 0;
}

static void *launch_once(void *who) {
  must(set_current(context), "cuCtxSetCurrent");
  launch(new_stream(), (int)(long)who);
  return NULL;
}

static void threads(void) {
  pthread_t thread[THREADS];
  for (long i = 0; i < THREADS; i++)
    must(pthread_create(&thread[i], NULL, launch_once, (void *)i),
         "pthread_create");
  for (int i = 0; i < THREADS; i++)
    pthread_join(thread[i], NULL);
}

static void capture(void) {
  int (*begin)(void *, int) = find("cuStreamBeginCapture_v2"),
                       (*end)(void *, void **) = find("cuStreamEndCapture");
  int (*instantiate)(void **, void *, unsigned long long) =
      find("cuGraphInstantiateWithFlags");
  void *captured = new_stream(), *stream = new_stream(), *graph, *exec;
  must(begin(captured, GLOBAL), "cuStreamBeginCapture");
  for (int i = 0; i < 4; i++) {
    launch(captured, 1);
    launch(stream, 0);
  }
  must(end(captured, &graph), "cuStreamEndCapture");
  must(instantiate(&exec, graph, 0), "cuGraphInstantiate");
  if (longest_s[1] > 0.02)
    must(1, "a launch into a capture was held");
}

static void destroyed(double seconds) {
  for (double begin = now_s(); now_s() < begin + seconds;) {
    void *stream = new_stream();
    launch(stream, 0);
    launch(stream, 0);
    must(destroy(stream), "cuStreamDestroy");
  }
}

static void *launch_and_say(void *said) {
  must(set_current(context), "cuCtxSetCurrent");
  void *stream = new_stream();
  __atomic_store_n((int *)said, 1, __ATOMIC_RELEASE);
  launch(stream, 0);
  __atomic_store_n((int *)said, 2, __ATOMIC_RELEASE);
  pthread_testcancel();
  return NULL;
}

static void cancelled(void) {
  pthread_t thread;
  int said = 0;
  for (int i = 0; i < 3; i++)
    launch(new_stream(), 1); /* so that the next one is held */
  must(pthread_create(&thread, NULL, launch_and_say, &said), "pthread_create");
  while (!__atomic_load_n(&said, __ATOMIC_ACQUIRE))
    ;
  nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
  must(pthread_cancel(thread), "pthread_cancel");
  pthread_join(thread, NULL);
  if (said != 2)
    must(1, "a launch was cancelled");
}

static void forked(void) {
  void *stream = new_stream();
  for (int i = 0; i < 3; i++)
    launch(stream, 0);
  pid_t child = fork();
  if (child == 0)
    _exit(0);
  waitpid(child, NULL, 0);
  launch(stream, 0);
}

int main(int argc, char **argv) {
  if (argc < 4)
    return 64;
  double seconds = atof(argv[3]);
  open_driver();
  context = open_card(0);
  function = find_spin(load_module(), argv[2]);
  set_current = find("cuCtxSetCurrent");
  launch_kernel = find("cuLaunchKernel");
  create = find("cuStreamCreate");
  destroy = find("cuStreamDestroy_v2");
  synchronize_all = find("cuCtxSynchronize");
  void *first = new_stream();
  launch(first, 0); /* so that what it costs is known */
  must(synchronize_all(), "cuCtxSynchronize");
  memset(longest_s, 0, sizeof longest_s);
  setvbuf(stdout, NULL, _IOLBF, 0);
  printf("running\n");
  double begin = now_s(), longest = 0;
  if (!strcmp(argv[1], "calls"))
    calls(seconds);
  else if (!strcmp(argv[1], "threads"))
    threads();
  else if (!strcmp(argv[1], "capture"))
    capture();
  else if (!strcmp(argv[1], "destroy"))
    destroyed(seconds);
  else if (!strcmp(argv[1], "cancel"))
    cancelled();
  else
    forked();
  for (int i = 0; i < THREADS; i++)
    longest = longest_s[i] > longest ? longest_s[i] : longest;
  printf("longest %.3f\n", longest * 1e3);
  if (strcmp(argv[1], "calls"))
    must(synchronize_all(), "cuCtxSynchronize");
  printf("ran %.3f\n", now_s() - begin);
  return 0; /* what waits at the gate ends with the process */
}
