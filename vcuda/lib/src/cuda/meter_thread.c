#define _GNU_SOURCE
#include "cuda/meter_thread.h"
#include "cuda/gate_deferred.h"
#include "cuda/gate_passage.h"
#include "cuda/settle.h"
#include "fork.h"
#include "interposer.h"
#include "cuda/thread.h"
#include "nap.h"
#include "page.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define AWAKE_NS 3000000u

static uint32_t alarm_word; /* the thread sleeps on it */
static uint32_t asleep, started;
static uint64_t last_seen_busy;

static long futex(uint32_t *word, int operation, uint32_t value, const struct timespec *timeout) {
    return syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, timeout, NULL, 0);
}

/* Asleep until a thread opens a span. The order of the two words lets no call go by unheard. */
static void sleep_until_woken(void) {
    uint32_t word = __atomic_load_n(&alarm_word, __ATOMIC_SEQ_CST);
    __atomic_store_n(&asleep, 1, __ATOMIC_SEQ_CST);
    if (!settle_pass())
        futex(&alarm_word, FUTEX_WAIT, word, NULL);
    __atomic_store_n(&asleep, 0, __ATOMIC_SEQ_CST);
    last_seen_busy = vcuda_now_ns(); /* short kernels are over before it looks: else each launch would wake it again */
}

static void *help(void *unused) {
    (void)unused;
    prctl(PR_SET_NAME, "vcuda-meter", 0, 0, 0);
    prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
    vcuda_depth = 1; /* whatever the driver calls from here on, it does not mean us */
    for (;;) {
        uint64_t next = settle_pass(), now = vcuda_now_ns();
        bool tends = gate_tend();
        gate_deferred_tend();
        if (next)
            last_seen_busy = now;
        if (next)
            nap(next);
        else if (tends || now - last_seen_busy < AWAKE_NS)
            nap(LOOK_MOST_NS);
        else
            sleep_until_woken();
    }
    return NULL;
}

/* In the child of a fork there is no helper. */
static void forget_in_child(void) {
    __atomic_store_n(&started, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&asleep, 0, __ATOMIC_RELAXED);
}

static void start(void) {
    uint32_t none = 0;
    if (!__atomic_compare_exchange_n(&started, &none, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return;
    fork_forgets(forget_in_child);
    thread_start(help); /* without it, threads that wait for credit settle, and launches are charged as expected */
}

void meter_thread_wake(void) {
    if (!__atomic_load_n(&started, __ATOMIC_RELAXED))
        start();
    if (!__atomic_load_n(&asleep, __ATOMIC_SEQ_CST))
        return;
    __atomic_fetch_add(&alarm_word, 1, __ATOMIC_SEQ_CST);
    if (__atomic_exchange_n(&asleep, 0, __ATOMIC_SEQ_CST))
        futex(&alarm_word, FUTEX_WAKE, 1, NULL);
}
