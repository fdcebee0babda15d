#include "cuda/context_meter.h"
#include "lock.h"
#include "page.h"

#include <sched.h>
#include <sys/mman.h>

#define PATIENCE_NS 1000000000u

struct context_meter *context_meters;

static bool busy; /* the lock */

bool meter_lock(bool patient) {
    uint64_t since = 0;
    for (unsigned tries = 1; !spin_try(&busy); tries++) {
        if (!patient)
            return false;
        if (tries % 64)
            continue;
        uint64_t now = vcuda_now_ns();
        since = since ? since : now;
        if (now - since > PATIENCE_NS)
            return false;
        sched_yield();
    }
    return true;
}

void meter_unlock(void) {
    spin_unlock(&busy);
}

void context_meters_forget(void) {
    busy = false;
    context_meters = NULL;
}

void *meter_map(size_t size) {
    void *found = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return found == MAP_FAILED ? NULL : found;
}

static struct context_meter *find_context_meter(uint64_t owner) {
    struct context_meter *context_meter = __atomic_load_n(&context_meters, __ATOMIC_ACQUIRE);
    while (context_meter && __atomic_load_n(&context_meter->owner, __ATOMIC_ACQUIRE) != owner)
        context_meter = context_meter->next;
    return context_meter;
}

static void fill_context_meter(struct context_meter *context_meter, const struct current_context *where,
                               CUcontext context) {
    context_meter->context = context;
    context_meter->card = where->card;
    context_meter->lost = false;
    context_meter->clock = (struct card_clock){0};
    context_meter->wait = (struct launch_wait){0};
    context_meter->waiting_end = &context_meter->waiting;
    context_meter->free_head = 0;
    for (unsigned i = 0; i < TIMING_SPANS; i++) {
        context_meter->span[i] = (struct timing_span){.context_meter = context_meter};
        timing_span_free(&context_meter->span[i]);
    }
}

static void publish_context_meter(struct context_meter *context_meter, uint64_t owner) {
    __atomic_store_n(&context_meter->owner, owner, __ATOMIC_RELEASE);
    struct context_meter *head = __atomic_load_n(&context_meters, __ATOMIC_RELAXED);
    do
        context_meter->next = head;
    while (
        !__atomic_compare_exchange_n(&context_meters, &head, context_meter, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
}

struct context_meter *context_meter_of(const struct current_context *where, CUcontext context) {
    struct context_meter *context_meter = find_context_meter(where->owner);
    if (context_meter || !meter_lock(true))
        return context_meter;
    context_meter = find_context_meter(where->owner);
    struct context_meter *reused = context_meter ? NULL : find_context_meter(0);
    if (reused) {
        fill_context_meter(reused, where, context);
        __atomic_store_n(&reused->owner, where->owner, __ATOMIC_RELEASE);
        context_meter = reused;
    } else if (!context_meter && (context_meter = meter_map(sizeof *context_meter))) {
        fill_context_meter(context_meter, where, context);
        publish_context_meter(context_meter, where->owner);
    }
    meter_unlock();
    return context_meter;
}
