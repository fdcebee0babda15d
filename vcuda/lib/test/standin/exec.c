/* Placing operations on the axis of GPU time, holding back what waits for the host, and waiting. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#include "process.h"

enum { STREAM_NON_BLOCKING = 1 };

static bool blocking(const struct stream *stream) {
    return stream != &stream->context->legacy && !(stream->flags & STREAM_NON_BLOCKING);
}

static int64_t later(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static void helper_wake(void);

/* The calling thread's own in this context. A thread that comes after one that has ended may have that one's. */
static struct stream *own_stream(struct context *context) {
    static __thread char self;
    struct stream *stream = context->streams;
    while (stream && stream->thread != &self)
        stream = stream->next;
    if (stream)
        return stream;
    if (!(stream = calloc(1, sizeof *stream)))
        return &context->legacy;
    stream->context = context;
    stream->thread = &self;
    stream->held_end = &stream->held;
    stream->id = ++process.next_id;
    stream->next = context->streams;
    context->streams = stream;
    return stream;
}

struct stream *stream_of(struct context *context, CUstream handle) {
    if (handle && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD)
        return handle;
    if (handle != CU_STREAM_PER_THREAD && !(handle == NULL && standin_per_thread))
        return &context->legacy;
    return own_stream(context);
}

/* ---- placing ---------------------------------------------------------------------------------------------- */

int64_t exec_tail(const struct stream *stream) {
    const struct context *context = stream->context;
    if (stream == &context->legacy)
        return later(stream->tail, context->blocking_tail);
    return blocking(stream) ? later(stream->tail, context->legacy.tail) : stream->tail;
}

int64_t exec_begin(struct stream *stream) {
    struct hold *hold = &stream->context->device->hold;
    card_lock(hold);
    card_advance(hold, now_ns());
    int64_t served = hold->card->slot[hold->mine].served;
    card_unlock(hold);
    return later(served, exec_tail(stream));
}

bool exec_is_idle(struct stream *stream) {
    return !stream->held && exec_reached(stream->context->device, exec_tail(stream));
}

int64_t exec_place(struct stream *stream, int64_t after, int64_t length, bool alone) {
    struct device *device = stream->context->device;
    struct hold *hold = &device->hold;
    card_lock(hold);
    card_advance(hold, now_ns());
    struct slot *slot = &hold->card->slot[hold->mine];
    int64_t start = later(later(after, slot->served), alone ? device->placed_until : device->alone_until);
    int64_t end = start + length;
    device->placed_until = later(device->placed_until, end);
    if (alone)
        device->alone_until = end;
    if (end > slot->asked)
        slot->asked = end;
    if (length > 0)
        card_note_end(hold, end);
    card_unlock(hold);
    return end;
}

void exec_finish(struct stream *stream, int64_t end) {
    stream->tail = later(stream->tail, end);
    if (blocking(stream))
        stream->context->blocking_tail = later(stream->context->blocking_tail, end);
}

static void place(struct stream *stream, int64_t length, bool alone) {
    struct device *device = stream->context->device;
    exec_finish(stream, exec_place(stream, exec_tail(stream), length, alone));
    device->pending[device->launches++ % LAUNCH_QUEUE] = stream->tail;
}

void exec_work(struct stream *stream, int64_t length, bool alone) {
    if (stream->held)
        exec_hold(stream, (struct operation){.kind = OP_WORK, .length = length, .alone = alone});
    else
        place(stream, length, alone);
}

void exec_call(int64_t ns) {
    int64_t until = ns ? now_ns() + ns : 0;
    while (until && now_ns() < until)
        ;
}

static void record(struct event *event, struct stream *stream, uint64_t generation) {
    if (config_read()->stamp_ns && !(event->flags & EVENT_DISABLE_TIMING))
        exec_finish(stream, exec_place(stream, exec_tail(stream), config_read()->stamp_ns, false));
    event->p = exec_tail(stream);
    event->not_before = now_ns();
    event->happened_at = 0;
    event->placed = generation;
}

void exec_record(struct event *event, struct stream *stream) {
    event->generation++;
    if (stream->held)
        exec_hold(stream, (struct operation){.kind = OP_RECORD, .event = event, .generation = event->generation});
    else
        record(event, stream, event->generation);
}

/* ---- held operations -------------------------------------------------------------------------------------- */

void exec_hold(struct stream *stream, struct operation operation) {
    struct operation *copy = malloc(sizeof *copy);
    if (!copy)
        return;
    *copy = operation;
    copy->next = NULL;
    *stream->held_end = copy;
    stream->held_end = &copy->next;
    helper_wake();
}

static void pop(struct stream *stream) {
    struct operation *first = stream->held;
    stream->held = first->next;
    if (!stream->held)
        stream->held_end = &stream->held;
    free(first);
}

void exec_forget(struct stream *stream) {
    while (stream->held)
        pop(stream);
}

/* An event of another card has a place by now: from here on it is a time of that card. */
static void turn_to_other_card(struct stream *stream, struct operation *first) {
    struct device *other = first->event->context->device;
    if (other == stream->context->device)
        return;
    first->kind = OP_OTHER_CARD;
    first->other = other;
    first->length = first->event->p;
}

enum { WAIT_EQUAL = 1, WAIT_AND = 2, WAIT_NOR = 3, WAIT_KINDS = 3 };

static bool word_is_met(const struct word *word) {
    uint64_t mask = word->wide ? UINT64_MAX : UINT32_MAX;
    uint64_t found = word->wide ? __atomic_load_n((uint64_t *)word->at, __ATOMIC_ACQUIRE)
                                : __atomic_load_n((uint32_t *)word->at, __ATOMIC_ACQUIRE);
    int64_t more = word->wide ? (int64_t)(found - word->value) : (int32_t)(found - word->value);
    switch (word->flags & WAIT_KINDS) {
    case WAIT_EQUAL:
        return found == word->value;
    case WAIT_AND:
        return (found & word->value) != 0;
    case WAIT_NOR:
        return (~(found | word->value) & mask) != 0;
    default:
        return more >= 0;
    }
}

/* Once the stream has come to it. True: it is written, or what is waited for is there. */
static bool word_is_done(struct stream *stream, const struct word *word) {
    if (!exec_reached(stream->context->device, exec_tail(stream)))
        return false;
    if (!word->is_write)
        return word_is_met(word);
    if (word->wide)
        __atomic_store_n((uint64_t *)word->at, word->value, __ATOMIC_RELEASE);
    else
        __atomic_store_n((uint32_t *)word->at, (uint32_t)word->value, __ATOMIC_RELEASE);
    return true;
}

/* True: the stream's queue has moved. Stops in front of host functions, of events not yet placed, of another card's
 * that have not happened, and of words that are waited for. */
static bool pump(struct stream *stream) {
    bool moved = false;
    while (stream->held) {
        struct operation *first = stream->held;
        if (first->kind == OP_HOST)
            break;
        if (first->kind == OP_WAIT && first->event && first->event->placed < first->generation)
            break;
        if (first->kind == OP_WAIT && first->event)
            turn_to_other_card(stream, first);
        if (first->kind == OP_OTHER_CARD && !exec_reached(first->other, first->length))
            break;
        if (first->kind == OP_WORD && !word_is_done(stream, &first->word))
            break;
        if (first->kind == OP_WORK)
            place(stream, first->length, first->alone);
        else if (first->kind == OP_RECORD && first->event)
            record(first->event, stream, first->generation);
        else if (first->kind == OP_WAIT && first->event)
            exec_finish(stream, first->event->p);
        pop(stream);
        moved = true;
    }
    return moved;
}

/* Calls `visit` for every stream of the process until one returns true. */
static struct stream *any_stream(bool (*visit)(struct stream *)) {
    for (int at = 0; at < process.devices; at++)
        for (struct context *context = process.device[at].contexts; context; context = context->next) {
            if (visit(&context->legacy))
                return &context->legacy;
            for (struct stream *stream = context->streams; stream; stream = stream->next)
                if (visit(stream))
                    return stream;
        }
    return NULL;
}

static __thread struct event *forgotten;
static bool forget_in(struct stream *stream) {
    for (struct operation *at = stream->held; at; at = at->next)
        if (at->event == forgotten)
            at->event = NULL;
    return false;
}
void exec_forget_event(struct event *event) {
    forgotten = event;
    any_stream(forget_in);
}

static __thread int64_t helper_due;
static int64_t due_on(struct device *device, int64_t p, int64_t now) {
    struct hold *hold = &device->hold;
    card_lock(hold);
    card_advance(hold, now);
    int64_t due = card_due(hold, p, now);
    card_unlock(hold);
    return due;
}

enum { WORD_LOOK_NS = 20000 };

/* Is it a host function's turn? Else notes when the helper has to look again. */
static bool host_ready(struct stream *stream) {
    const struct operation *first = stream->held;
    if (!first || (first->kind != OP_HOST && first->kind != OP_OTHER_CARD && first->kind != OP_WORD))
        return false;
    int64_t now = now_ns(), due = first->kind == OP_OTHER_CARD
                                      ? due_on(first->other, first->length, now)
                                      : due_on(stream->context->device, exec_tail(stream), now);
    if (first->kind == OP_HOST && due <= now)
        return true;
    if (first->kind == OP_WORD && due <= now)
        due = now + WORD_LOOK_NS;
    if (helper_due == 0 || due < helper_due)
        helper_due = due;
    return false;
}

static void run_host(struct stream *stream) {
    struct operation operation = *stream->held;
    struct context *context = stream->context;
    process_unlock();
    exec_call(config_read()->host_ns);
    if (operation.fn)
        operation.fn(operation.data);
    else if (operation.callback)
        operation.callback(stream == &context->legacy ? NULL : stream, CUDA_SUCCESS, operation.data);
    process_lock();
    if (stream->held)
        pop(stream);
    pthread_cond_broadcast(&process.progress);
}

static void *helper(void *unused) {
    (void)unused;
    process_lock();
    for (;;) {
        while (any_stream(pump))
            pthread_cond_broadcast(&process.progress);
        helper_due = 0;
        struct stream *stream = any_stream(host_ready);
        if (stream) {
            run_host(stream);
        } else if (helper_due) {
            struct timespec until = {helper_due / 1000000000, helper_due % 1000000000};
            pthread_cond_timedwait(&process.progress, &process.lock, &until);
        } else {
            pthread_cond_wait(&process.progress, &process.lock);
        }
    }
    return NULL;
}

/* One helper a process, begun by the first operation that is held back. It ends with the process. */
static void helper_wake(void) {
    if (!process.helper_started) {
        pthread_condattr_t attributes;
        pthread_t thread;
        pthread_condattr_init(&attributes);
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        pthread_cond_init(&process.progress, &attributes);
        pthread_condattr_destroy(&attributes);
        process.helper_started = pthread_create(&thread, NULL, helper, NULL) == 0;
        if (process.helper_started)
            pthread_detach(thread);
    }
    pthread_cond_broadcast(&process.progress);
}

/* ---- waiting ---------------------------------------------------------------------------------------------- */

bool exec_reached(struct device *device, int64_t p) {
    struct hold *hold = &device->hold;
    card_lock(hold);
    card_advance(hold, now_ns());
    bool reached = hold->mine < 0 || hold->card->slot[hold->mine].served >= p;
    card_unlock(hold);
    return reached;
}

int64_t exec_wall(struct device *device, int64_t p) {
    card_lock(&device->hold);
    card_advance(&device->hold, now_ns());
    int64_t wall = device->hold.mine < 0 ? 0 : card_wall(&device->hold, p);
    card_unlock(&device->hold);
    return wall;
}

/* The driver spins while it waits (CU_CTX_SCHED_AUTO). A model with more processes than processors cannot, so a long
 * wait sleeps; but a sleep ends 20 to 50 us late, more on some machines, and its last stretch is spun: how long a wait
 * takes is the card's matter, not the machine's timers'. */
enum { SPIN_NS = 60000 };

static void sleep_until(int64_t due) {
    static __thread bool exact;
    if (!exact) {
        prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
        exact = true;
    }
    if (due - now_ns() > 2 * SPIN_NS) {
        int64_t until = due - SPIN_NS;
        struct timespec time = {until / 1000000000, until % 1000000000};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL);
    }
    while (now_ns() < due)
        ;
}

void exec_wait(struct device *device, int64_t p) {
    struct hold *hold = &device->hold;
    for (;;) {
        int64_t now = now_ns();
        card_lock(hold);
        bool gone = hold->mine < 0;
        int64_t due = now;
        if (!gone) {
            card_advance(hold, now);
            if (hold->card->slot[hold->mine].served < p)
                due = card_due(hold, p, now);
        }
        bool reached = gone || hold->card->slot[hold->mine].served >= p;
        card_unlock(hold);
        if (reached)
            return;
        sleep_until(due > now ? due : now + 1000);
    }
}

void exec_stream_wait(struct stream *stream) {
    struct device *device = stream->context->device;
    process_lock();
    while (stream->held)
        pthread_cond_wait(&process.progress, &process.lock);
    int64_t tail = exec_tail(stream);
    process_unlock();
    exec_wait(device, tail);
    process_lock();
    pool_sync(device);
    process_unlock();
}

static bool has_held(struct stream *stream) {
    return stream->held != NULL;
}

void exec_device_wait(struct device *device) {
    process_lock();
    while (any_stream(has_held))
        pthread_cond_wait(&process.progress, &process.lock);
    int64_t end = device->placed_until;
    process_unlock();
    exec_wait(device, end);
    process_lock();
    pool_sync(device);
    process_unlock();
}

void exec_queue_wait(struct device *device) {
    process_lock();
    int64_t oldest = device->pending[device->launches % LAUNCH_QUEUE];
    process_unlock();
    if (oldest && !exec_reached(device, oldest))
        exec_wait(device, oldest);
}

bool exec_event_wait(struct event *event) {
    process_lock();
    uint64_t generation = event->generation;
    while (event->placed < generation)
        pthread_cond_wait(&process.progress, &process.lock);
    int64_t p = event->p;
    struct device *device = event->context->device;
    process_unlock();
    exec_wait(device, p);
    process_lock();
    pool_sync(device);
    process_unlock();
    return true;
}
