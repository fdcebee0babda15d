/* Turns of processes with several threads each, which find them over and give them while others are about to launch: no
 * two processes launch at once, and none waits for ever. Locks are of open files, so one process stands for several.
 * Each check prints a line if it fails; the program's answer is how many did.
 */
#define _GNU_SOURCE
#include "cuda/turn.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

enum { PROCESSES = 3, THREADS = 3, LAUNCHES = 10000 };
#define BEGIN UINT64_C(100000000000)
#define NEXT_NS (2 * TURN_NS) /* each launch is long enough to end a turn */

static char gate[] = "/tmp/unit-turn-threads-XXXXXX";
static struct turn turns[PROCESSES];
static uint64_t clock_ns = BEGIN; /* hardly moves: no launch is on its way for long */
static int launching[PROCESSES];
static unsigned together, given;

static uint64_t now_ns(void) {
    return __atomic_add_fetch(&clock_ns, 1, __ATOMIC_RELAXED);
}

static void launch(struct turn *turn, int who) {
    __atomic_fetch_add(&launching[who], 1, __ATOMIC_SEQ_CST);
    turn_use(turn, now_ns());
    sched_yield();
    for (int other = 0; other < PROCESSES; other++)
        if (other != who && __atomic_load_n(&launching[other], __ATOMIC_SEQ_CST))
            __atomic_fetch_add(&together, 1, __ATOMIC_RELAXED);
    __atomic_fetch_sub(&launching[who], 1, __ATOMIC_SEQ_CST);
}

/* As gate_passage.c asks. */
static bool has_turn(struct turn *turn) {
    if (turn_hold(turn)) {
        uint64_t taken_at = turn_taken_at(turn);
        if (!turn_is_over(turn, NEXT_NS, now_ns()))
            return true;
        turn_let_go(turn);
        if (!turn_give(turn, taken_at, now_ns()))
            return false;
        __atomic_fetch_add(&given, 1, __ATOMIC_RELAXED);
    }
    return turn_take(turn, gate, now_ns());
}

static void *run(void *number) {
    int who = (int)(intptr_t)number % PROCESSES;
    for (int launches = 0; launches < LAUNCHES;) {
        if (has_turn(&turns[who])) {
            sched_yield(); /* it may be stopped between its look and its launch */
            launch(&turns[who], who);
            turn_let_go(&turns[who]);
            launches++;
        } else {
            sched_yield();
        }
    }
    if (turn_hold(&turns[who])) { /* who has had its last gives the turn, as the helper thread does */
        uint64_t taken_at = turn_taken_at(&turns[who]);
        turn_let_go(&turns[who]);
        while (turn_is_held(&turns[who]) && turn_taken_at(&turns[who]) == taken_at &&
               !turn_give(&turns[who], taken_at, now_ns()))
            sched_yield();
    }
    return NULL;
}

int main(void) {
    pthread_t threads[PROCESSES * THREADS];
    int fd = mkstemp(gate);
    CHECK(fd >= 0 && fchmod(fd, 0444) == 0);
    for (intptr_t i = 0; i < PROCESSES * THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, run, (void *)i) == 0);
    for (int i = 0; i < PROCESSES * THREADS; i++)
        pthread_join(threads[i], NULL);
    unlink(gate);
    CHECK(together == 0);
    CHECK(given > PROCESSES, "the turn has passed on");
    for (int i = 0; i < PROCESSES; i++)
        CHECK(turns[i].launching == 0);
    return checked();
}
