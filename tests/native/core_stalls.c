/* Did the machine stand still? A thread on each processor sleeps for a
 * millisecond again and again and notes how late it wakes. Prints "watching";
 * when stdin closes, the longest lateness and the sum of those over a
 * millisecond on the processor that had most of it, in microseconds, and how
 * long it watched.
 *
 * It runs at a real-time priority above the programs that it watches over,
 * where it may: what it sees then is a machine that took the processor away,
 * not the programs themselves.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { PERIOD_NS = 1000000, PRIORITY = 10 };

struct seen {
  int processor;
  long long worst_ns, sum_ns;
};

static int ended;
static pthread_barrier_t ready;

static long long now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void *watch(void *argument) {
  struct seen *seen = argument;
  cpu_set_t own;
  CPU_ZERO(&own);
  CPU_SET(seen->processor, &own);
  sched_setaffinity(0, sizeof own, &own);
  sched_setscheduler(0, SCHED_FIFO,
                     &(struct sched_param){.sched_priority = PRIORITY});
  pthread_barrier_wait(&ready);
  while (!__atomic_load_n(&ended, __ATOMIC_RELAXED)) {
    long long due = now_ns() + PERIOD_NS;
    nanosleep(&(struct timespec){.tv_nsec = PERIOD_NS}, NULL);
    long long late = now_ns() - due;
    if (late > seen->worst_ns)
      seen->worst_ns = late;
    if (late > PERIOD_NS)
      seen->sum_ns += late;
  }
  return NULL;
}

int main(void) {
  static pthread_t thread[CPU_SETSIZE];
  static struct seen seen[CPU_SETSIZE];
  cpu_set_t allowed;
  int count = 0, most = 0;
  if (sched_getaffinity(0, sizeof allowed, &allowed))
    return 1;
  pthread_barrier_init(&ready, NULL, (unsigned)CPU_COUNT(&allowed) + 1);
  for (int processor = 0; processor < CPU_SETSIZE; processor++)
    if (CPU_ISSET(processor, &allowed)) {
      seen[count].processor = processor;
      if (pthread_create(&thread[count], NULL, watch, &seen[count]))
        return 1;
      count++;
    }
  pthread_barrier_wait(&ready);
  long long begin = now_ns();
  printf("watching\n");
  fflush(stdout);
  while (getchar() != EOF)
    ;
  __atomic_store_n(&ended, 1, __ATOMIC_RELAXED);
  for (int i = 0; i < count; i++) {
    pthread_join(thread[i], NULL);
    if (seen[i].sum_ns + seen[i].worst_ns >
        seen[most].sum_ns + seen[most].worst_ns)
      most = i;
  }
  printf("%lld %lld %lld\n", seen[most].worst_ns / 1000,
         seen[most].sum_ns / 1000, (now_ns() - begin) / 1000);
  return 0;
}
